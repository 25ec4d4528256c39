"""Adaptix' memory against REST's datastore of the same corpus, and its speed by category of task."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.papers.claims import PaperFigure, exact, ratio_of_sums
from benchmarks.papers.entry import Curve, PaperExperiment, PaperFindings, PapersBench, PaperSizes, Picture
from benchmarks.papers.experiments.trees import FULL as TREES_FULL
from benchmarks.papers.experiments.trees import SMALL as TREES_SMALL
from benchmarks.papers.experiments.trees import Line, corpus_of, faster, lines_of
from benchmarks.trees.bench import MEASURED, TreesRun, unit_of
from benchmarks.trees.corpora import Knowledge, read_texts
from benchmarks.trees.methods import ALONE, MCTS, TreesUnit
from benchmarks.trees.result import UnitLine
from osd.bench.harness.folder import RunFolder
from osd.bench.harness.prompts import MOST_LINES, Tokens, listed, texts_by_set
from osd.bench.harness.turns import measure_all
from osd.drafters.ngram.corpus_stats import table_stats
from osd.models.pair import load_pair, row_limit
from osd.models.vocabulary import load_tokenizer
from osd.prompts import Prompt, encode, read_prompts
from storage.errors import BadInput

SHARES = (0.05, 0.2, 0.5, 1.0)
FIELDS = ("category", "domain")
"""Fields of a line that name its category."""
NODES, DEPTH = 32, 16
"""Nodes and depth of trees at most, as `python -m benchmarks trees` has them."""


def memory(bench: PapersBench, sizes: PaperSizes) -> PaperFindings:
    """Bytes of the matrix and of suffixes of the same corpora, the texts of each data set, by their size."""
    tokenizer = load_tokenizer(bench.target)
    rows, whole, matrix, suffixes = [], {}, {}, {}
    for name, texts in texts_by_set(bench.prompts, sizes.texts, seed=bench.seed).items():
        known = Knowledge([np.array(encode(tokenizer, text), np.int64) for text in texts])
        for share in SHARES:
            part = known.part(share)
            matrix[name, share] = float(table_stats(part.table(3))["table_bytes"])
            suffixes[name, share] = float(part.index.bytes)
            rows.append({
                "corpus": name, "tokens": part.tokens, "matrix, bytes a token": matrix[name, share] / part.tokens,
                "REST-like, bytes a token": suffixes[name, share] / part.tokens,
            })  # fmt: skip
        whole[name] = known.tokens

    def against(share: float) -> PaperFigure:
        return ratio_of_sums([matrix[name, share] for name in whole], [suffixes[name, share] for name in whole])

    figures = {
        "matrix_vs_rest": against(1.0),
        "whole_vs_part_of_corpus": exact(against(1.0).value / against(SHARES[0]).value),
    }
    curves = [
        Curve(name, [(share * count, matrix[name, share] / suffixes[name, share]) for share in SHARES])
        for name, count in whole.items()
    ]
    return PaperFindings(figures, {"Memory": rows}, {"memory": Picture("tokens of the corpus", "÷ REST-like", curves)})


def categories(bench: PapersBench, sizes: PaperSizes) -> PaperFindings:
    """The tree's speed ÷ the target alone by category: that of the prompts' lines, else their data sets."""
    texts = by_category(bench)
    lines = bench.once("trees-categories", lambda: _measured(bench, sizes, texts)) if texts else lines_of(bench, sizes)
    names = dict.fromkeys(line["unit"]["data_set"] for line in lines)
    found = {name: faster(lines, MCTS.name, ALONE.name, data_set=name) for name in names}
    if len(found) < 2:
        raise BadInput(reason="All prompts are of one category; give --prompts spec_bench.jsonl.gz, or several files.")
    least, most = (pick(found.values(), key=lambda figure: figure.value) for pick in (min, max))
    figures = {"least_speed_up": least, "most_vs_least": _quotient(most, least)}
    rows = [{"category": name, "÷ target alone": str(figure)} for name, figure in found.items()]
    return PaperFindings(figures, {"Speed-up by category": rows})


def _quotient(one: PaperFigure, other: PaperFigure) -> PaperFigure:
    """Return the ratio of figures of different texts."""
    value = one.value / max(other.value, 1e-9)
    if one.error is None or other.error is None:
        return PaperFigure(value)
    spread = float(np.hypot(one.error / max(one.value, 1e-9), other.error / max(other.value, 1e-9)))
    return PaperFigure(value, value * spread, min(one.count or 0, other.count or 0))


def by_category(bench: PapersBench) -> dict[str, list[str]]:
    """Return the prompts of ``--prompts`` by the category that their lines name; nothing where they name none."""
    found: dict[str, list[str]] = {}
    for path in listed(bench.prompts):
        for line in islice(read_prompts(Path(path)), MOST_LINES):
            if isinstance(line, Prompt) and (name := next(filter(None, map(line.fields.get, FIELDS)), None)):
                found.setdefault(str(name), []).append(line.text)
    return found if len(found) > 1 else {}


def _measured(bench: PapersBench, sizes: PaperSizes, texts: Mapping[str, list[str]]) -> list[Line]:
    serve, out = bench.settings.serve, bench.folder(f"categories-{sizes.texts}x{sizes.tokens}")
    pair = load_pair(bench.target, bench.draft, device=serve.device, dtype=serve.dtype)
    known = Knowledge(read_texts(pair, [corpus_of(bench, pair, out / "corpus.jsonl", sizes.texts)]))
    longest = row_limit(pair, serve) - sizes.tokens
    sets: dict[str, list[Tokens]] = {}
    for name, some in texts.items():
        fitting = [tokens for text in some if len(tokens := encode(pair.tokenizer, text)) <= longest]
        if len(fitting) >= min(sizes.texts, 2):
            sets[name] = fitting[: sizes.texts]
    facts: dict[str, Any] = {"sets": {name: len(some) for name, some in sets.items()}, "tokens": sizes.tokens}
    run = TreesRun(pair, bench.settings, known, sets, sizes.tokens, NODES, DEPTH)
    folder = RunFolder(out, facts, MEASURED, UnitLine)
    units = [TreesUnit("speed", name, (ALONE.name, MCTS.name)) for name in sets]
    lines = measure_all(units, run.measure, bench.watch, folder=folder, job_of=unit_of, work=run.work)
    if bench.watch.stopped:
        raise KeyboardInterrupt
    return lines


MEMORY = PaperExperiment(memory, PaperSizes(100, minutes=0.5), PaperSizes(3000, minutes=5))
CATEGORIES = PaperExperiment(categories, TREES_SMALL, TREES_FULL)
