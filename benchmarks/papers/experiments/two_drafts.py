"""A draft for each prompt, chosen by what is expected of it: on-the-fly adaptation's Tables 2 and 13 and Theorem 3.

One draft is the pair's own, the other is larger: it is cut from the target and learns its answers. Both are recorded
over the same texts, and replayed under the analytic rule with the paper's constants. What the larger one's pass costs
beside the smaller one's is told: that of LLaMA 13B beside 7B. The router's own regression (router/draft_predictor.py)
learns both drafts' acceptance from some prompts of each data set, then names a draft for each of the others.
"""

from __future__ import annotations

import math
import shutil
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.distil.texts import answers
from benchmarks.figures import farthest, mean_of, ratio_of_sums
from benchmarks.gamma.costed import CostedTexts, Floats
from benchmarks.gamma.costs import CostTable, Piece, Pieces, find_costs
from benchmarks.gamma.rounds import RecordedText, Recording
from benchmarks.papers.experiment import PaperExperiment, PaperFindings, PapersBench, shared
from benchmarks.papers.experiments.distilled import distilled_on
from benchmarks.papers.experiments.gamma_rules import WINDOWS
from benchmarks.papers.experiments.replays import (
    DEPTH,
    ReplayedTexts,
    best_on_other_half,
    deepest,
    fixed,
    papers_analytic,
    record,
    recorded,
)
from osd.models.pair import Pair
from osd.models.small_draft import cut
from osd.models.weights import read_weights, write_full
from osd.prompts import encode
from router.draft_predictor import DraftPredictors, Expect, PendingRequest
from router.throughput import Costs, TextScore, larger_pays
from storage.errors import BadInput
from storage.files.files import writing
from storage.replay.exports import write_export
from storage.sampling import GREEDY

SMALL, LARGE = "small", "large"
FIRST = 25
"""Texts of each data set at most that the router learns from."""
Mask = npt.NDArray[np.bool_]
Traces = tuple[RecordedText, ...]


@dataclass(frozen=True, slots=True)
class ReplayedDraft:
    """A draft's texts under the analytic rule."""

    texts: ReplayedTexts
    found: CostedTexts

    @property
    def costs(self) -> Costs:
        """What the router knows of its costs."""
        table = self.texts.table
        return Costs(table.draft_ms(1, 1), [table.verify_ms(1, gamma + 1) for gamma in range(DEPTH + 1)])

    def score(self, number: int) -> TextScore:
        """Return how often its first drafted token is right on a text, whatever stood before."""
        right = self.texts.texts[number].acceptance[:, 0]
        return TextScore(float(right.mean()), len(right))


def replayed_draft(traces: Traces, table: CostTable, most: int = DEPTH) -> ReplayedDraft:
    """Replay a draft's recorded texts. ``most``: γ_max."""
    texts = ReplayedTexts((), traces, table)
    return ReplayedDraft(texts, texts.under(papers_analytic(most)))


def on_same_texts(one: Traces, other: Traces) -> tuple[Traces, Traces]:
    """Return the greedy texts that both recordings have, in one order. Raises BadInput where there is none."""
    theirs = {(*text.prompt.tolist(), -1, *text.text.tolist()): text for text in other if not text.temperature}
    keys = [(*text.prompt.tolist(), -1, *text.text.tolist()) for text in one]
    pairs = [(text, theirs[key]) for text, key in zip(one, keys, strict=True) if key in theirs]
    if not pairs:
        raise BadInput(reason="The two recordings have no text in common; give two of the same target and prompts.")
    return tuple(own for own, _ in pairs), tuple(text for _, text in pairs)


def dearer(table: CostTable, factor: float) -> CostTable:
    """Return the costs with a draft whose passes take ``factor`` times as long."""
    assert isinstance(table.draft, Pieces)
    pieces = [Piece(p.start_ms * factor, p.row_ms * factor, p.token_ms * factor) for p in table.draft.pieces]
    return replace(table, name=f"{table.name}, drafts × {factor:.2f}", draft=Pieces(tuple(pieces)))


class Drafts(dict[str, ReplayedDraft]):
    """Both drafts on the same texts, in data sets' order. The first third of each data set, FIRST at most as in the
    paper, is learned from; the others count."""

    def __init__(self, drafts: Mapping[str, ReplayedDraft], perplexities: Sequence[float | None]) -> None:
        """``perplexities``: of each text's prompt under the target, as serving reads it."""
        super().__init__(drafts)
        self._perplexities = perplexities

    @property
    def sets(self) -> npt.NDArray[np.str_]:
        """Each text's data set."""
        return self[SMALL].found.data_sets

    @property
    def counts(self) -> Mask:
        """Which texts count, (n,)."""
        places = [int((self.sets[:i] == name).sum()) for i, name in enumerate(self.sets)]
        thirds = [min(FIRST, -(-int((self.sets == name).sum()) // 3)) for name in self.sets]
        return np.array(places) >= np.array(thirds)

    def ms(self, draft: str) -> Floats:
        """Return milliseconds of each text that counts, with one draft."""
        return self[draft].found.ms[self.counts]

    def takes_larger(self, dimensions: int, expect: Expect) -> Mask:
        """Return for each text that counts whether the router names the larger draft."""
        costs = {name: draft.costs for name, draft in self.items()}
        predictors = DraftPredictors(costs.get, dimensions, expect, threading.Lock())
        picks, counts = [], self.counts
        for number in np.argsort(counts, kind="stable").tolist():
            text = self[SMALL].texts.texts[number]
            pending = PendingRequest(text.prompt.tolist(), True, self._perplexities[number], "default", tuple(self))
            predictors.estimates(pending)
            if counts[number]:
                picks.append(pending.followed == LARGE)
            else:
                predictors.add_scores(pending, {name: draft.score(number) for name, draft in self.items()}, costs)
        return np.array(picks)

    def with_choice(self, larger: Mask) -> Floats:
        """Return milliseconds of each text that counts, with the draft that was named."""
        return np.where(larger, self.ms(LARGE), self.ms(SMALL))

    def best_of_set(self) -> Floats:
        """Return milliseconds of each text that counts under the draft that is faster on the other half of its data
        set."""
        names = self.sets[self.counts]
        found = np.zeros(len(names))
        for name in np.unique(names):
            mine = names == name
            found[mine] = best_on_other_half({draft: self.ms(draft)[mine] for draft in self})
        return found


def perplexities(pair: Pair, prompts: Sequence[Sequence[int]]) -> list[float | None]:
    """Return each prompt's perplexity under the target, over the tokens of which serving reads it."""
    reader = pair.target.decoder(1, max(map(len, prompts)) + 1)
    surprises = [reader.prefill_scored(0, prompt, 0) for prompt in prompts]
    return [None if each is None else math.exp(each) for each in surprises]


class TwoDrafts(PaperExperiment):
    """An experiment with both drafts."""

    replays = 2
    costs: str
    """Cost profile of the smaller one."""
    times_dearer: float
    """What the larger one's pass costs ÷ that of the smaller one."""
    layers: int
    """Those of the target that the larger one has."""
    learn: int
    """Answers to prompts of each data set that it learns from."""
    epochs: int

    @shared("two-drafts")
    def drafts(self, bench: PapersBench) -> Drafts:
        """Return both drafts' texts, replayed once."""
        table = find_costs(self.costs)
        small, dear, most = recorded(bench, self).traces, dearer(table, self.times_dearer), deepest(bench)
        if bench.recording is None:
            large = self._record_larger(bench).traces
            surprises = perplexities(bench.pair, [text.prompt.tolist() for text in small])
        else:  # without a target nothing tells the prompts' perplexity
            small, large = on_same_texts(small, bench.larger.traces if bench.larger else ())
            surprises = [None] * len(small)
        both = {SMALL: replayed_draft(small, table, most), LARGE: replayed_draft(large, dear, most)}
        return Drafts(both, surprises)

    def _record_larger(self, bench: PapersBench) -> Recording:
        folder = bench.folder(self.named("two-drafts"))
        return record(bench, self, folder / "rounds.parquet", bench.load(self._larger(bench, folder)), 0.0)

    def _larger(self, bench: PapersBench, folder: Path) -> Path:
        """Return the folder of the larger draft. Raises CannotCut, TrainingFailed."""
        made, rough, samples = folder / "draft", folder / "cut", folder / "answers.parquet"
        if made.exists():
            return made
        shutil.rmtree(rough, ignore_errors=True)  # of a run that was stopped
        with writing(folder):
            rough.mkdir()
            write_full(cut(read_weights(bench.target, "auto"), bench.target, self.layers)[0], rough, Path(bench.target))
        pair, others = bench.pair, bench.others(self.learn, self.texts)
        prompts = [encode(pair.tokenizer, text) for some in others.values() for text in some]
        prompts = [tokens for tokens in prompts if len(tokens) < bench.longest(self.tokens)]
        kept = answers(pair, bench.settings.changed(serve={"max_batch": 8}), prompts, GREEDY, self.tokens)
        write_export(samples, [kept], overwrite=True)
        return distilled_on(bench, samples, made, self.epochs, "a larger draft", start=rough)


class DraftSelection(TwoDrafts):
    """Table 2: speed with a draft chosen for each prompt, against one for each data set and against the original
    method; beside it what an oracle's choice would bring, and Theorem 3's."""

    dimensions: int
    """r."""

    def run(self, bench: PapersBench) -> PaperFindings:
        """Let the router choose in several ways."""
        drafts = self.drafts(bench)
        small, names = drafts[SMALL], drafts.sets[drafts.counts]
        expects: dict[str, Expect] = {"Eq. 3": "pace", "Theorem 3": "theorem", "gain": "gain"}
        ways = {
            "small draft": drafts.ms(SMALL), "large draft": drafts.ms(LARGE),
            "better draft of each data set": drafts.best_of_set(),
        } | {
            f"chosen by {name}": drafts.with_choice(drafts.takes_larger(self.dimensions, expect))
            for name, expect in expects.items()
        }  # fmt: skip
        ways["better draft of each prompt"] = np.minimum(ways["small draft"], ways["large draft"])
        windows = np.mean([small.texts.under(fixed(bench, gamma)).ms[drafts.counts] for gamma in WINDOWS], axis=0)
        own, single = ways["chosen by Eq. 3"], ways["better draft of each data set"]
        figures = {
            "chosen_vs_original": ratio_of_sums(windows, own), "chosen_vs_one_draft": ratio_of_sums(single, own),
            "chosen_vs_small": ratio_of_sums(ways["small draft"], own),
            "theorem_3_vs_one_draft": ratio_of_sums(single, ways["chosen by Theorem 3"]),
        }  # fmt: skip
        rows = [
            {"": way, "÷ windows of 5 to 8": str(ratio_of_sums(windows, ms))}
            | {n: float(windows[names == n].sum() / ms[names == n].sum()) for n in dict.fromkeys(names.tolist())}
            for way, ms in ways.items()
        ]
        return PaperFindings(figures, {f"Speed, {small.texts.costs_told}": rows})


class Dimensions(TwoDrafts):
    """Table 13: tokens a second with the draft that a regression over r features names."""

    dimensions: tuple[int, ...]
    """r; the last is what the others are held against."""

    def run(self, bench: PapersBench) -> PaperFindings:
        """Let the router choose with every r."""
        drafts = self.drafts(bench)
        tokens = float(drafts[SMALL].found.tokens[drafts.counts].sum())
        picks = {r: drafts.takes_larger(r, "pace") for r in self.dimensions}
        ms = {r: drafts.with_choice(larger) for r, larger in picks.items()}
        most = ms[self.dimensions[-1]]
        rows = [
            {"r": r, "tokens a second": 1e3 * tokens / float(ms[r].sum()), "larger draft": float(np.mean(picks[r]))}
            for r in ms
        ]
        against = [ratio_of_sums(most, ms[r]) for r in self.dimensions[:-1]]
        return PaperFindings({"r_farthest_from_16": farthest(against, 1)}, {"By r": rows})


class LargerPays(TwoDrafts):
    """Theorem 3 on each text: does its condition, as printed and as Eq. 3 gives it, say which draft was faster?"""

    def run(self, bench: PapersBench) -> PaperFindings:
        """Compare both sides of both conditions on every text that both drafted for."""
        drafts = self.drafts(bench)
        both = drafts[SMALL], drafts[LARGE]
        c_small, c_large = (each.costs.draft_ms / each.costs.verify_ms[0] for each in both)
        printed, right, faster = [], [], []
        for number, text in enumerate(drafts[SMALL].texts.texts):
            drafted = [float(each.found.drafted[number]) for each in both]
            if not all(drafted):
                continue  # ρ is of what was drafted
            length = float(text.length)
            rounds = float(both[0].found.rounds[number]), float(both[1].found.rounds[number])
            rho = length / drafted[0], length / drafted[1]
            wins = bool(both[1].found.ms[number] < both[0].found.ms[number])
            faster.append(wins)
            right.append(larger_pays(length, rounds=rounds, rho=rho, c=(c_small, c_large)) == wins)
            if rho[1] > rho[0]:  # as the theorem has it: the larger draft's acceptance rate is higher
                holds = rounds[0] - rounds[1] > (c_large - c_small) / (rho[1] - rho[0]) * length
                printed.append((holds, wins))
        some = {
            "as_derived_right": right, "as_printed_sufficient": [won for holds, won in printed if holds],
            "as_printed_right": [holds == won for holds, won in printed],
        }  # fmt: skip
        figures = {name: mean_of(each) for name, each in some.items() if each}
        rows = [{
            "texts": len(right), "larger draft faster": sum(faster) / max(1, len(faster)),
            "ρ higher with it": len(printed), "condition holds as printed": sum(holds for holds, _ in printed),
        }]  # fmt: skip
        return PaperFindings(figures, {f"Texts, {both[0].texts.costs_told}": rows})
