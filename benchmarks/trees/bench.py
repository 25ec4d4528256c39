"""Draft trees: accept length and tokens a second of every way to draft, on any prompts and any corpus."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Le

from benchmarks.trees.corpora import Knowledge, own_answers, read_texts
from benchmarks.trees.methods import ALONE, BY_NAME, SEARCHES, DecodedText, TreesUnit, decoder_of, units_of
from benchmarks.trees.result import BIN, TreesCell, summary
from osd.bench.harness.folder import RunFolder
from osd.bench.harness.plan import Count, PairPlan, data_sets, facts_of
from osd.bench.harness.prompts import Tokens
from osd.bench.harness.report import BenchResult, save_json
from osd.bench.harness.turns import Cell, measure_all
from osd.bench.harness.watch import Watch
from osd.drafters.ngram import BadCorpus
from osd.drafters.ngram.corpus_stats import table_stats
from osd.drafters.ngram.counts import Index
from osd.drafters.ngram.drafter import NgramDrafter, SearchSettings
from osd.drafters.ngram.table import Table
from osd.models.pair import Pair, row_limit
from osd.server.start import choose_pair
from storage.errors import BadInput
from storage.files.files import writing
from storage.settings import Settings

BENCH, ANSWERS, MEASURED = "bench.json", "answers.json", "measured.jsonl"
END = 512
"""Tokens of the text that a draft is timed on."""
TIMED = 50
"""Drafts whose median is told."""


@dataclass(frozen=True, kw_only=True)
class TreesPlan(PairPlan):
    """Accept length and tokens a second of every way to draft: look-up, suffixes, n-gram trees, the draft.

    accept_length is measured with every tree as deep as it may be, tokens_per_s with gamma.rule in charge. Greedy
    texts are compared with the target's own.

    Example: `python -m benchmarks trees --target ./target --draft ./draft --prompts chat.jsonl --corpus other.jsonl`
    """

    corpus: tuple[Path, ...]
    """JSONL files with `prompt` and `response` that tables are made of; none of --prompts."""
    count: Annotated[int, Ge(2)] = 16
    """Prompts drawn from each data set."""
    max_tokens: Count = 128
    """Tokens of an answer at most."""
    answers: Annotated[int, Ge(0)] = 64
    """So many prompts of each corpus file are answered by the target, for the corpus."""
    nodes: Annotated[int, Ge(1), Le(1024)] = 32
    """Drafted tokens of a tree at most."""
    depth: Annotated[int, Ge(1), Le(64)] = 16
    """How deep a tree may be."""
    sensitivity: bool = True
    """Also by temperature, top-p and corpus size."""
    out: Path = Path("out/trees")
    """Folder of figures and pictures; a run goes on there."""


def bench_trees(plan: TreesPlan, settings: Settings, watch: Watch) -> BenchResult:
    """Load the pair and its prompts, and measure. Raises BadInput for prompts of the corpus."""
    if same := {Path(name).resolve() for name in plan.prompts} & {path.resolve() for path in plan.corpus}:
        reason = f"{same.pop()} is among --prompts and --corpus: a table would know the answers"
        raise BadInput(reason=f"{reason}; give other files.")
    pair = choose_pair(settings.serve, plan.target, plan.draft).load(settings.serve)
    sets = data_sets(plan, pair.tokenizer, plan.count, row_limit(pair, settings.serve) - plan.max_tokens, seed=0)
    facts, cells, known = measure_trees(plan, pair, sets, settings, watch)
    if watch.stopped:
        return BenchResult("trees", facts, {}, interrupted=True)
    figures = _figures(cells, known)
    return BenchResult("trees", facts, figures, _tables(figures), leave(figures, plan.out))


def measure_trees(
    plan: TreesPlan, pair: Pair, sets: Mapping[str, list[Tokens]], settings: Settings, watch: Watch
) -> tuple[dict[str, Any], list[TreesCell], Knowledge]:
    """Measure what the folder does not hold yet; return facts, cells and the corpus. Raises BadCorpus for files without
    answers, BadSetting when it holds a run of another plan."""
    facts = facts_of(
        plan, target=pair.target.name, draft=pair.draft.name, corpus=[path.name for path in plan.corpus],
        threads=settings.serve.threads, gamma=settings.gamma.rule,
        prompts={name: len(prompts) for name, prompts in sets.items()},
    )  # fmt: skip
    folder = RunFolder(plan.out, facts, MEASURED, TreesCell)
    known = Knowledge(read_texts(pair, plan.corpus) + _answers(plan, pair, settings, watch))
    if known.tokens < 8 * END:
        raise BadCorpus(path=plan.corpus[0], reason=f"{8 * END} tokens are the least; give more --corpus.")
    run, units = TreesRun(plan, pair, settings, known, sets), list(units_of(sets, plan.sensitivity))
    return facts, measure_all(units, run.measure, watch, folder=folder, work=run.work), known


class TreesRun:
    """Measures units."""

    def __init__(
        self, plan: TreesPlan, pair: Pair, settings: Settings, known: Knowledge, sets: Mapping[str, list[Tokens]]
    ) -> None:
        self._pair, self._data_sets, self._new_tokens = pair, sets, plan.max_tokens
        self._settings = settings.changed(
            serve={"max_batch": 1}, drafters={"tree_nodes": plan.nodes},
            gamma={"max": plan.depth, "initial": plan.depth},
        )  # fmt: skip
        self._known, self._parts = known, {1.0: known}

    def work(self, unit: TreesUnit) -> int:
        """Count the texts of a unit."""
        return len(unit.methods) * len(self._data_sets[unit.data_set])

    def measure(self, unit: TreesUnit) -> TreesCell:
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
        return Cell(unit, figures)


def add_text(figures: dict[str, Any], text: DecodedText) -> None:
    """Add a text's tokens a second and tokens a pass; passes are also counted by the length of text before them."""
    figures["rates"].append(round(len(text.tokens) / text.seconds, 2))
    figures["lengths"].append(round(len(text.tokens) / len(text.passes), 4))
    figures["tokens"], figures["passes"] = figures["tokens"] + len(text.tokens), figures["passes"] + len(text.passes)
    for length, brought in text.passes:
        kept = figures["bins"].setdefault(str(length // BIN), [0, 0])
        kept[0], kept[1] = kept[0] + brought, kept[1] + 1


def _figures(lines: Sequence[TreesCell], known: Knowledge) -> dict[str, Any]:
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


def _answers(plan: TreesPlan, pair: Pair, settings: Settings, watch: Watch) -> list[Any]:
    """Return the target's answers, kept in the folder for the next time."""
    path = plan.out / ANSWERS
    if path.exists():
        return [np.array(text, np.int64) for text in json.loads(path.read_text("utf-8"))]
    watch.at("the target's answers")
    texts = own_answers(pair, settings, plan.corpus, plan.answers)
    with writing(plan.out):
        path.write_text(json.dumps([text.tolist() for text in texts]), encoding="utf-8")
    return texts


def leave(figures: Mapping[str, Any], out: Path) -> dict[str, Path]:
    """Write figures and pictures; return the files by what they are. Raises StoreWriteFailed."""
    from benchmarks.trees.picture import draw_context, draw_sensitivity
    from osd.bench.harness.picture import save

    files = {"figures": save_json(out / BENCH, figures)}
    with writing(out):
        files["by context"] = save(draw_context(figures), out, "trees-context")
        if figures["by_corpus"]:
            files["by sampling and corpus"] = save(draw_sensitivity(figures), out, "trees-sensitivity")
    return files
