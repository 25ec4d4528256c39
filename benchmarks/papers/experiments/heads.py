"""SpecDec++ with acceptance heads trained as the paper trains them: on one data set, tried on all, by replay.

A head is trained by `python -m trainer head` (answers and proposals at temperature 1, top-k 50, 15 % of the target's
tokens mixed in) on prompts of the first data set that are not measured. Its estimates are recorded with rounds that
are sampled in the same way, and thresholds h are swept in the replay; a threshold, and SpecDec's length K, are chosen
on the other half of the texts. Beside stands the rule with h from the costs, which may rest.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks.distil.bench import trainer_said
from benchmarks.figures import PaperFigure, mean_of, ratio_of_sums
from benchmarks.gamma.costed import CostedTexts
from benchmarks.gamma.costs import CostTable, find_costs
from benchmarks.gamma.record import RecordPlan, record_file
from benchmarks.gamma.rounds import RecordedText
from benchmarks.gamma.simulate import Make
from benchmarks.papers.experiment import Curve, PaperExperiment, PaperFindings, PapersBench, Picture, Rows, shared
from benchmarks.papers.experiments.replays import (
    DEPTH,
    ReplayedTexts,
    deepest,
    fixed,
    papers_analytic,
    rule,
    tuned,
)
from storage.errors import BadInput
from trainer.heads.fit import binary_kl

LONGEST = 20
"""Drafted tokens at which SpecDec++ stops in any case (section 5.1)."""
Shape = tuple[float, int]
"""w_rej and D."""
BEST: Shape = (6.0, 3)
"""The shape that the paper ends with."""
TEMPERATURE, TOP_K, EPOCHS = 1.0, 50, 10
ByThreshold = Mapping[float, CostedTexts]


class Heads:
    """Heads of several shapes, and rounds recorded with each."""

    def __init__(self, bench: PapersBench, plan: HeadsExperiment) -> None:
        """Draw prompts."""
        self._bench, self._plan = bench, plan
        self.prompts = bench.sets(plan.texts, plan.tokens)
        self.folder = bench.folder(plan.named("heads"))

    @property
    def trained_on(self) -> str:
        """The data set that heads are trained on."""
        return next(iter(self.prompts))

    def head(self, shape: Shape) -> Path:
        """Return a trained head's folder. Raises TrainingFailed with the end of what the trainer said."""
        (weight, depth), bench = shape, self._bench
        out = self.folder / f"w{weight:g}-d{depth}"
        if not out.exists():
            shaped = os.environ | {"OSD_LEARN__HEAD_DEPTH": str(depth), "OSD_LEARN__HEAD_REJECT_WEIGHT": str(weight)}
            trainer_said(
                "head", "--target", bench.target, "--draft", bench.draft, "--prompts", self._training_prompts(),
                "--out", out, "--epochs", EPOCHS, "--temperature", TEMPERATURE, "--top-k", TOP_K,
                "--max-tokens", self._plan.tokens, told=f"{bench.draft}'s acceptance head", variables=shaped,
            )  # fmt: skip
        return out

    def _training_prompts(self) -> Path:
        path = self.folder / "training.jsonl"
        texts = self._bench.others(self._plan.training, self._plan.texts)[self.trained_on]
        path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts), encoding="utf-8")
        return path

    def texts(self, shape: Shape) -> Sequence[RecordedText]:
        """Return the sampled rounds of all texts, with a head's estimates."""
        from osd.models.acceptance_head import HeadPass, load_head

        folder, pair, bench = self.head(shape), self._bench.pair, self._bench
        asked = RecordPlan(
            temperatures=(TEMPERATURE,), new_tokens=self._plan.tokens, depth=DEPTH, seed=bench.seed, top_k=TOP_K,
            head=HeadPass(load_head(folder), pair.draft.device),
        )  # fmt: skip
        return record_file(self.folder / f"{folder.name}.parquet", pair, self.prompts, asked, bench.watch).traces


class HeadsExperiment(PaperExperiment):
    """An experiment with trained heads."""

    training: int
    """Prompts that a head learns from."""

    @shared("heads")
    def heads(self, bench: PapersBench) -> Heads:
        """Return the heads, made once."""
        return Heads(bench, self)

    def sampled(self, bench: PapersBench) -> tuple[Sequence[RecordedText], str | None]:
        """Return sampled rounds with what a head of the paper's shape says, and the one data set that it learned from;
        those of a recording learned from other texts of all. Raises BadInput for a recording without."""
        if bench.recording is None:
            heads = self.heads(bench)
            return heads.texts(BEST), heads.trained_on
        found = [text for text in bench.recording.traces if text.temperature == TEMPERATURE and text.head is not None]
        if not found:
            raise BadInput(reason="The recording has no sampled texts with an acceptance head's word: record --head.")
        return found, None


class SweptHeads(HeadsExperiment):
    """An experiment that replays SpecDec++ with several thresholds."""

    costs: str
    thresholds: tuple[float, ...]

    def swept(self, bench: PapersBench, texts: ReplayedTexts, thresholds: Sequence[float]) -> ByThreshold:
        """Replay SpecDec++ with each threshold."""
        return texts.under_all({h: with_threshold(bench, h) for h in thresholds})


def with_threshold(bench: PapersBench, threshold: float | str) -> Make:
    """Return what makes SpecDec++ with h, or with one from the costs ("costs")."""
    return rule(bench, "specdecpp", 4, LONGEST, {"specdecpp": {"threshold": threshold, "head": None}})


class AgainstLengths(SweptHeads):
    """SpecDec++, Table 1 and Figures 1 and 3: thresholds against fixed lengths, on the data set that the head was
    trained on and on the others; under dear and cheap drafts, as a better frontier wins under all costs."""

    cheap_drafts: str
    """Costs with them."""
    near_one: tuple[float, ...]
    """More thresholds, for drafts that are accepted less: w_rej lowers a head's odds sixfold, so that with an
    acceptance of a half all of the paper's end a round at its second token."""
    lengths: tuple[int, ...]
    replays = 1

    def run(self, bench: PapersBench) -> PaperFindings:
        """Replay thresholds and lengths, and compare each at its best."""
        sampled, learned = self.sampled(bench)
        texts = ReplayedTexts((), sampled, find_costs(self.costs))
        plus, lengths = self.swept(bench, texts, self.thresholds), self._lengths(bench, texts)
        wide = {**plus, **self.swept(bench, texts, self.near_one)}
        by_costs = texts.under(with_threshold(bench, "costs"))
        figures, rows = {"specdecpp_vs_best_k": _gain(plus, lengths), "wide_vs_best_k": _gain(wide, lengths)}, []
        figures["by_costs_vs_best_k"] = ratio_of_sums(tuned(lengths), by_costs.ms)
        for name in dict.fromkeys(text.data_set for text in texts.texts):
            theirs = {k: each.only(name) for k, each in lengths.items()}
            gain, wide_gain = (_gain({h: each.only(name) for h, each in some.items()}, theirs) for some in (plus, wide))
            own = learned in (None, name)
            rows.append({"data set": name, "trained on": own,
                         "÷ best K, h to 0.9": str(gain), "÷ best K, h to 0.999": str(wide_gain)})  # fmt: skip
            if name == learned:
                figures |= {"in_distribution": gain, "wide_in_distribution": wide_gain}
        if learned is None:
            figures |= {"in_distribution": _gain(plus, lengths), "wide_in_distribution": _gain(wide, lengths)}
        elif others := [text for text in texts.texts if text.data_set != learned]:
            figures["out_of_distribution"] = self._fresh_gain(bench, others, texts.table)
        figures["with_cheaper_drafts"] = self._fresh_gain(bench, texts.texts, find_costs(self.cheap_drafts))
        figures["analytic_vs_specdecpp"] = ratio_of_sums(tuned(plus), texts.under(papers_analytic(deepest(bench))).ms)
        curves = [Curve("SpecDec++", _rates(wide.values())), Curve("SpecDec", _rates(lengths.values()))]
        picture = Picture("discard rate", "verification rate", curves)
        return PaperFindings(figures, {f"Costs of {texts.table.name}": rows}, {"frontier": picture})

    def _lengths(self, bench: PapersBench, texts: ReplayedTexts) -> dict[int, CostedTexts]:
        return texts.under_all({k: fixed(bench, k) for k in self.lengths if k <= deepest(bench)})

    def _fresh_gain(self, bench: PapersBench, texts: Sequence[RecordedText], table: CostTable) -> PaperFigure:
        some = ReplayedTexts((), texts, table)
        return _gain(self.swept(bench, some, self.thresholds), self._lengths(bench, some))


def _gain(plus: ByThreshold, lengths: Mapping[int, CostedTexts]) -> PaperFigure:
    return ratio_of_sums(tuned(lengths), tuned(plus))


def _rates(found: Iterable[CostedTexts]) -> list[tuple[float, float]]:
    return [(each.discard_rate, each.verification_rate) for each in found]


class Shapes(SweptHeads):
    """SpecDec++, Table 3: heads by w_rej and D, each with its best threshold."""

    weights: tuple[float, ...]
    depths: tuple[int, ...]
    """Every w_rej is tried with every D; the paper's own shape in any case."""

    def run(self, bench: PapersBench) -> PaperFindings:
        """Train and sweep every shape."""
        heads, rows, found = self.heads(bench), [], dict[tuple[Shape, float], CostedTexts]()
        for shape in self.shapes():
            texts = ReplayedTexts((), heads.texts(shape), find_costs(self.costs))
            plus = self.swept(bench, texts, self.thresholds)
            found |= {(shape, h): each for h, each in plus.items()}
            best = max(plus, key=lambda h: plus[h].rate)
            kl, undone = (eval_kl(texts.texts, weight) for weight in (1.0, shape[0]))
            rows.append({"w_rej": shape[0], "D": shape[1], "eval KL": kl.value, "its weight undone": undone.value,
                         "best h": best, "tokens a second": plus[best].rate})  # fmt: skip
        papers = tuned({key: each for key, each in found.items() if key[0] == BEST})
        figures = {
            "papers_shape_vs_best": ratio_of_sums(tuned(found), papers),
            "threshold_6_minus_1": self._heavier(rows, "best h"),
            "eval_kl_6_minus_1": self._heavier(rows, "eval KL"),
        }  # fmt: skip
        return PaperFindings(figures, {"Heads": rows})

    def _heavier(self, rows: Rows, key: str) -> PaperFigure:
        """Return how much more a column is with the paper's w_rej than with 1."""
        light, heavy = ([row[key] for row in rows if row["w_rej"] == weight] for weight in (1.0, BEST[0]))
        return mean_of(np.subtract(heavy, light[: len(heavy)]))

    def shapes(self) -> list[Shape]:
        """Return what is tried."""
        grid = [(weight, depth) for weight in self.weights for depth in self.depths]
        return grid if BEST in grid else [BEST, *grid]


def eval_kl(texts: Sequence[RecordedText], weight: float) -> PaperFigure:
    """Return the mean over texts of the binary KL of acceptance from what the head says of each drafted token (appendix
    D.3), once a weight of rejections is undone: 1 leaves it as it is."""
    means = []
    for text in texts:
        assert text.head is not None
        said, chances = (torch.from_numpy(each.ravel()) for each in (text.head[:, 1:], text.acceptance[:, :-1]))
        means.append(float(binary_kl(chances, said.logit(1e-6) + math.log(weight)).mean()))
    return mean_of(means)
