"""Two drafts for one target, by replay: the pair's own, and a larger one that is cut from the target and learns.

Both are recorded over the same texts, and replayed under the analytic rule with the paper's constants. What the larger
one's pass costs beside the smaller one's is told: that of LLaMA 13B beside 7B.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.distil.bench import distil_draft
from benchmarks.distil.texts import answers
from benchmarks.gamma.costs import CostTable, Piece, Pieces, find_costs
from benchmarks.gamma.rounds import RecordedText, Recording
from benchmarks.papers.entry import PapersBench, PaperSizes
from benchmarks.papers.experiments.gamma_rules import ON_TWO_A100
from benchmarks.papers.experiments.replays import (
    DEPTH,
    WARM_TEXTS,
    ReplayedRule,
    ReplayedTexts,
    papers_analytic,
    recording_of,
)
from benchmarks.papers.experiments.subjects import other_texts
from osd.bench.harness.prompts import tokens_by_set
from osd.models.pair import Pair, load_pair, row_limit
from osd.models.small_draft import cut
from osd.models.weights import read_weights, write_full
from osd.prompts import encode
from router.throughput import Costs, TextScore
from storage.files.files import writing
from storage.replay.exports import write_export
from storage.sampling import GREEDY

LAYERS, EPOCHS = 3, 4
LEARN = {True: 100, False: 8}
"""Answers to prompts of each data set that the larger draft learns from: full and small."""
LARGER = 13 / 7
"""What its pass costs ÷ that of the smaller one."""
SMALL_DRAFT, LARGE_DRAFT = "small", "large"


@dataclass(frozen=True, slots=True)
class ReplayedDraft:
    """A draft's texts under the analytic rule."""

    texts: ReplayedTexts
    found: ReplayedRule

    @property
    def costs(self) -> Costs:
        """What the router knows of its costs."""
        table = self.texts.table
        return Costs(table.draft_ms(1, 1), [table.verify_ms(1, gamma + 1) for gamma in range(DEPTH + 1)])

    def score(self, number: int) -> TextScore:
        """Return how often its first drafted token is right on a text, whatever stood before."""
        right = self.texts.texts[number].acceptance[:, 0]
        return TextScore(float(right.mean()), len(right))


Drafts = dict[str, ReplayedDraft]


def two_drafts(bench: PapersBench, sizes: PaperSizes) -> Drafts:
    """Return both drafts' texts, which are the same ones, in data sets' order."""
    return bench.once("two-drafts", lambda: _replayed(bench, sizes))  # type: ignore[no-any-return]


def _replayed(bench: PapersBench, sizes: PaperSizes) -> Drafts:
    table = find_costs(ON_TWO_A100)
    recordings = {SMALL_DRAFT: recording_of(bench, sizes, 0.0), LARGE_DRAFT: _record_larger(bench, sizes)}
    tables = {SMALL_DRAFT: table, LARGE_DRAFT: dearer(table, LARGER)}
    return {name: replayed_draft(some.traces, tables[name]) for name, some in recordings.items()}


def replayed_draft(traces: tuple[RecordedText, ...], table: CostTable) -> ReplayedDraft:
    """Replay a draft's recorded texts."""
    texts = ReplayedTexts((), traces, table)
    return ReplayedDraft(texts, texts.under(papers_analytic()))


def dearer(table: CostTable, factor: float) -> CostTable:
    """Return the costs with a draft whose passes take ``factor`` times as long."""
    assert isinstance(table.draft, Pieces)
    pieces = [Piece(p.start_ms * factor, p.row_ms * factor, p.token_ms * factor) for p in table.draft.pieces]
    return replace(table, name=f"{table.name}, drafts × {factor:.2f}", draft=Pieces(tuple(pieces)))


def _record_larger(bench: PapersBench, sizes: PaperSizes) -> Recording:
    from benchmarks.gamma.record import record_file

    serve, folder = bench.settings.serve, bench.folder(f"two-drafts-{sizes.texts}x{sizes.tokens}")
    pair = load_pair(bench.target, bench.draft, device=serve.device, dtype=serve.dtype)
    longest = row_limit(pair, serve) - sizes.tokens
    prompts = tokens_by_set(pair.tokenizer, bench.prompts, WARM_TEXTS + sizes.texts, longest, seed=bench.seed)
    larger = load_pair(bench.target, _larger(bench, pair, folder, sizes), device=serve.device, dtype=serve.dtype)
    return record_file(
        folder / "rounds.parquet", larger, prompts, temperatures=(0.0,), new_tokens=sizes.tokens, depth=DEPTH,
        seed=bench.seed, watch=bench.watch,
    )  # fmt: skip


def _larger(bench: PapersBench, pair: Pair, folder: Path, sizes: PaperSizes) -> Path:
    """Return the folder of the larger draft. Raises CannotCut, TrainingFailed."""
    made, rough, samples = folder / "draft", folder / "cut", folder / "answers.parquet"
    if made.exists():
        return made
    bench.watch.at("a larger draft learns from the target's answers")
    shutil.rmtree(rough, ignore_errors=True)  # of a run that was stopped
    with writing(folder):
        rough.mkdir()
        write_full(cut(read_weights(bench.target, "auto"), bench.target, LAYERS)[0], rough, Path(bench.target))
    texts = [text for some in other_texts(bench, LEARN[bench.full], sizes.texts).values() for text in some]
    limit = row_limit(pair, bench.settings.serve) - sizes.tokens
    prompts = [tokens for text in texts if len(tokens := encode(pair.tokenizer, text)) < limit]
    kept = answers(pair, bench.settings.changed(serve={"max_batch": 8}), prompts, GREEDY, sizes.tokens)
    write_export(samples, partial(iter, [kept]), overwrite=True)
    done = distil_draft(bench.settings, samples, rough, made, EPOCHS, told="a larger draft")
    bench.watch.say(f"the larger draft's loss is {done['loss_last']:.2f}")
    return made


def learned_first(data_sets: tuple[str, ...], most: int = 25) -> np.ndarray:
    """Return which texts are learned from, (n,): the first third of each data set, 25 at most as in the paper."""
    seen: dict[str, int] = {}
    counts = {name: data_sets.count(name) for name in data_sets}
    first = []
    for name in data_sets:
        first.append(seen.get(name, 0) < min(most, -(-counts[name] // 3)))
        seen[name] = seen.get(name, 0) + 1
    return np.array(first)
