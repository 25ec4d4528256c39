"""``python -m benchmarks trees``: the corpus, the run, its figures and pictures."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.trees.corpora import Knowledge, own_answers, read_texts
from benchmarks.trees.decoding import DecodedText, decoder_of
from benchmarks.trees.methods import ALONE, BY_NAME, SEARCHES, TreesUnit, units_of
from benchmarks.trees.result import BIN, UnitLine, summary
from osd.bench.harness.folder import RunFolder
from osd.bench.harness.prompts import Tokens
from osd.bench.harness.report import BenchResult, plain, save_json
from osd.bench.harness.turns import measure_all
from osd.bench.harness.watch import Watch
from osd.drafters.ngram import BadCorpus
from osd.drafters.ngram.corpus_stats import table_stats
from osd.drafters.ngram.counts import Index
from osd.drafters.ngram.drafter import NgramDrafter, SearchSettings
from osd.drafters.ngram.table import Table
from osd.models.pair import Pair
from storage.files.files import writing
from storage.settings import Settings

BENCH, ANSWERS, MEASURED = "bench.json", "answers.json", "measured.jsonl"
END = 512
"""Tokens of the text that a draft is timed on."""
TIMED = 50
"""Drafts whose median is told."""


def bench_trees(
    pair: Pair,
    settings: Settings,
    data_sets: Mapping[str, list[Tokens]],
    corpus: Sequence[Path],
    out: Path,
    watch: Watch,
    *,
    new_tokens: int = 128,
    answers: int = 64,
    nodes: int = 32,
    depth: int = 16,
    sensitivity: bool = True,
) -> BenchResult:
    """Measure what ``out`` does not hold yet, and draw. Raises BadCorpus for files without answers, BadSetting when
    ``out`` holds a run of another plan."""
    counts = {name: len(prompts) for name, prompts in data_sets.items()}
    facts = {
        "target": pair.target.name, "draft": pair.draft.name, "corpus": [path.name for path in corpus],
        "answers": answers, "threads": settings.serve.threads, "data_sets": counts, "new_tokens": new_tokens,
        "nodes": nodes, "depth": depth, "gamma": settings.gamma.rule, "sensitivity": sensitivity,
    }  # fmt: skip
    folder = RunFolder(out, facts, MEASURED, UnitLine)
    known = Knowledge(read_texts(pair, corpus) + _answers(pair, settings, corpus, answers, out, watch))
    if known.tokens < 8 * END:
        raise BadCorpus(path=corpus[0], reason=f"{8 * END} tokens are the least; give more --corpus.")
    run = TreesRun(pair, settings, known, data_sets, new_tokens, nodes, depth)
    units = list(units_of(data_sets, sensitivity))
    lines = measure_all(units, run.measure, watch, folder=folder, job_of=unit_of, work=run.work)
    if watch.stopped:
        return BenchResult("trees", facts, {}, interrupted=True)
    figures = _figures(lines, known)
    return BenchResult("trees", facts, figures, _tables(figures), leave(figures, out))


def unit_of(line: UnitLine) -> TreesUnit:
    """Return the unit that a line was measured in."""
    return TreesUnit(**{**line["unit"], "methods": tuple(line["unit"]["methods"])})


class TreesRun:
    """Measures units."""

    def __init__(
        self, pair: Pair, settings: Settings, known: Knowledge, data_sets: Mapping[str, list[Tokens]],
        new_tokens: int, nodes: int, depth: int,
    ) -> None:  # fmt: skip
        self._pair, self._data_sets, self._new_tokens = pair, data_sets, new_tokens
        self._settings = settings.changed(
            serve={"max_batch": 1}, drafters={"tree_nodes": nodes}, gamma={"max": depth, "initial": depth}
        )
        self._known, self._parts = known, {1.0: known}

    def work(self, unit: TreesUnit) -> int:
        """Count the texts of a unit."""
        return len(unit.methods) * len(self._data_sets[unit.data_set])

    def measure(self, unit: TreesUnit) -> UnitLine:
        """Decode all prompts of a unit with every method, in a random order at each."""
        if unit.share not in self._parts:
            self._parts[unit.share] = self._known.part(unit.share)
        known = self._parts[unit.share]
        settings = self._settings if unit.part == "speed" else self._settings.changed(gamma={"rule": "fixed"})
        ways = {name: decoder_of(BY_NAME[name], self._pair, settings, known, self._new_tokens) for name in unit.methods}
        figures: dict[str, dict[str, Any]] = {
            name: {"rates": [], "lengths": [], "tokens": 0, "passes": 0, "differing": 0, "bins": {}} for name in ways
        }
        chance = random.Random(0)
        for number, prompt in enumerate(self._data_sets[unit.data_set]):
            order = chance.sample(list(ways), len(ways))
            found = {name: ways[name](prompt, unit.sampling(number)) for name in order}
            own = found.get(ALONE.name)
            for name, text in found.items():
                add_text(figures[name], text)
                figures[name]["differing"] += own is not None and text.tokens != own.tokens
        return plain({"unit": asdict(unit), "methods": figures})  # type: ignore[no-any-return]


def add_text(figures: dict[str, Any], text: DecodedText) -> None:
    """Add a text's tokens a second and tokens a pass; passes are also counted by the length of text before them."""
    figures["rates"].append(round(len(text.tokens) / text.seconds, 2))
    figures["lengths"].append(round(len(text.tokens) / len(text.passes), 4))
    figures["tokens"], figures["passes"] = figures["tokens"] + len(text.tokens), figures["passes"] + len(text.passes)
    for length, brought in text.passes:
        kept = figures["bins"].setdefault(str(length // BIN), [0, 0])
        kept[0], kept[1] = kept[0] + brought, kept[1] + 1


def _figures(lines: Sequence[UnitLine], known: Knowledge) -> dict[str, Any]:
    table, text = known.table(3), np.concatenate(known.texts[: END * 8])
    times = {str(searches): draft_us(table, text, searches) for searches in SEARCHES}
    figures = summary(lines, times, table_stats(table)["bytes_per_n_gram"])
    return figures | {"corpus": {"texts": len(known.texts), "tokens": known.tokens}}


def draft_us(table: Table, tokens: Index, searches: int) -> float:
    """Return the median microseconds of a tree; the text ends elsewhere every time."""
    maker, seconds = NgramDrafter(table, SearchSettings(searches=searches)), []
    place = maker.open(tokens[:END])
    for turn in range(-1, TIMED):
        tail = tokens[: END - max(0, turn) * 7 % (END // 2)]
        begun = time.perf_counter()
        maker.propose([place], [tail])
        seconds += [time.perf_counter() - begun] if turn >= 0 else []
    maker.close(place)
    return round(float(np.median(seconds)) * 1e6, 1)


def _tables(figures: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    sets = figures["sets"]
    return {
        what.replace("_", " "): [
            {"method": method, "all": overall} | {name: own[method][what] for name, own in sets.items()}
            for method, overall in figures["overall"][what].items()
        ]
        for what in ("accept_length", "tokens_per_s")
    }


def _answers(pair: Pair, settings: Settings, corpus: Sequence[Path], each: int, out: Path, watch: Watch) -> list[Any]:
    """Return the target's answers, kept in ``out`` for the next time."""
    path = out / ANSWERS
    if path.exists():
        return [np.array(text, np.int64) for text in json.loads(path.read_text("utf-8"))]
    watch.at("the target's answers")
    texts = own_answers(pair, settings, corpus, each)
    with writing(out):
        path.write_text(json.dumps([text.tolist() for text in texts]), encoding="utf-8")
    return texts


def leave(figures: Mapping[str, Any], out: Path) -> dict[str, Path]:
    """Write figures and pictures; return the files by what they are. Raises StoreWriteFailed."""
    from benchmarks.trees.picture import draw_context, draw_methods, draw_sensitivity
    from osd.bench.harness.picture import save

    files = {"figures": save_json(out / BENCH, figures)}
    with writing(out):
        files["methods"] = save(draw_methods(figures), out, "trees")
        files["by context"] = save(draw_context(figures), out, "trees-context")
        if figures["by_corpus"]:
            files["by sampling and corpus"] = save(draw_sensitivity(figures), out, "trees-sensitivity")
    return files
