"""SpecDec++ with acceptance heads trained as the paper trains them: on one data set, tried on all, by replay.

A head is trained by `python -m trainer head` (answers and proposals at temperature 1, top-k 50, 15 % of the target's
tokens mixed in) on prompts of the first data set that are not measured. Its estimates are recorded with the rounds, and
thresholds h are swept in the replay; a threshold, and SpecDec's length K, are chosen on the other half of the texts.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.gamma.costs import CostTable, find_costs
from benchmarks.gamma.rounds import RecordedText
from benchmarks.papers.claims import PaperFigure, mean_of, ratio_of_sums
from benchmarks.papers.entry import Curve, PaperExperiment, PaperFindings, PapersBench, PaperSizes, Picture
from benchmarks.papers.experiments.gamma_rules import LENGTHS, ON_A100_13, ON_TWO_A100
from benchmarks.papers.experiments.replays import (
    DEPTH,
    ReplayedRule,
    ReplayedTexts,
    best_on_other_half,
    fixed,
    papers_analytic,
    rule,
)
from benchmarks.papers.experiments.subjects import other_texts
from osd.bench.harness.prompts import tokens_by_set
from storage.errors import TrainingFailed

THRESHOLDS = (0.1, 0.3, 0.5, 0.7, 0.9)
"""The paper's."""
NEAR_ONE = (0.95, 0.98, 0.99, 0.995, 0.999)
"""More of them, for drafts that are accepted less: w_rej lowers a head's odds sixfold, so that with an acceptance of a
half all of the paper's end a round at its second token."""
LONGEST = 20
"""Drafted tokens at which SpecDec++ stops in any case (section 5.1)."""
BEST = (6.0, 3)
"""w_rej and D that the paper ends with."""
SMALL_SHAPES = (BEST, (1.0, 0))
SHAPES = tuple((weight, depth) for weight in (1.0, 3.0, 6.0, 12.0) for depth in range(5))
TRAINING = {True: 400, False: 48}
"""Prompts that a head learns from, full and small."""
TEMPERATURE, TOP_K, EPOCHS = 1.0, 50, 10
Shape = tuple[float, int]


class HeadsBench:
    """Heads of several shapes, and rounds recorded with each."""

    def __init__(self, bench: PapersBench, sizes: PaperSizes) -> None:
        """Load the pair and draw prompts."""
        from osd.models.pair import load_pair, row_limit

        serve = bench.settings.serve
        self._bench, self._sizes = bench, sizes
        self.pair = load_pair(bench.target, bench.draft, device=serve.device, dtype=serve.dtype)
        longest = row_limit(self.pair, serve) - sizes.tokens
        self.prompts = tokens_by_set(self.pair.tokenizer, bench.prompts, sizes.texts, longest, seed=bench.seed)
        self.folder = bench.folder(f"heads-{sizes.texts}x{sizes.tokens}")

    @property
    def trained_on(self) -> str:
        """The data set that heads are trained on."""
        return next(iter(self.prompts))

    def head(self, shape: Shape) -> Path:
        """Return a trained head's folder. Raises TrainingFailed with the end of what the trainer said."""
        from osd.demo.runner.process import command

        weight, depth = shape
        out = self.folder / f"w{weight:g}-d{depth}"
        if out.exists():
            return out
        file = self._training_prompts()
        asked = (
            "--target", self._bench.target, "--draft", self._bench.draft, "--prompts", file, "--out", out, "--epochs",
            EPOCHS, "--temperature", TEMPERATURE, "--top-k", TOP_K, "--max-tokens", self._sizes.tokens,
        )  # fmt: skip
        shaped = {"OSD_LEARN__HEAD_DEPTH": str(depth), "OSD_LEARN__HEAD_REJECT_WEIGHT": str(weight)}
        done = subprocess.run(
            command("head", *asked), env={**os.environ, **shaped}, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise TrainingFailed(run="(head)", draft=self._bench.draft, reason=done.stderr.strip()[-300:])
        return out

    def _training_prompts(self) -> Path:
        path = self.folder / "training.jsonl"
        texts = other_texts(self._bench, TRAINING[self._bench.full], self._sizes.texts)[self.trained_on]
        lines = [json.dumps({"prompt": text}) for text in texts]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    def texts(self, shape: Shape) -> tuple[RecordedText, ...]:
        """Return the sampled rounds of all texts, with a head's estimates."""
        from benchmarks.gamma.record import record_file
        from osd.models.acceptance_head import HeadPass, load_head

        folder = self.head(shape)
        recorded = record_file(
            self.folder / f"{folder.name}.parquet", self.pair, self.prompts, temperatures=(TEMPERATURE,),
            new_tokens=self._sizes.tokens, depth=DEPTH, seed=self._bench.seed,
            head=HeadPass(load_head(folder), self.pair.draft.device), watch=self._bench.watch,
        )  # fmt: skip
        return recorded.traces


def heads_of(bench: PapersBench, sizes: PaperSizes) -> HeadsBench:
    """Return the heads, made once."""
    return bench.once("heads", lambda: HeadsBench(bench, sizes))  # type: ignore[no-any-return]


def swept(
    bench: PapersBench, texts: ReplayedTexts, thresholds: Sequence[float] = THRESHOLDS
) -> dict[float, ReplayedRule]:
    """Replay SpecDec++ with each threshold."""
    return {
        h: texts.under(rule(bench, "specdecpp", 4, LONGEST, specdecpp={"threshold": h, "head": None}))
        for h in thresholds
    }


def against_lengths(bench: PapersBench, sizes: PaperSizes, *, costs: str = ON_TWO_A100) -> PaperFindings:
    """SpecDec++, Table 1 and Figures 1 and 3: thresholds against fixed lengths, on the data set that the head was
    trained on and on the others; under dear and cheap drafts, as a better frontier wins under all costs."""
    heads = heads_of(bench, sizes)
    texts = ReplayedTexts((), heads.texts(BEST), find_costs(costs))
    plus, lengths = swept(bench, texts), {k: texts.under(fixed(bench, k)) for k in LENGTHS}
    wide = {**plus, **swept(bench, texts, NEAR_ONE)}
    rows, figures = [], {"specdecpp_vs_best_k": _gain(plus, lengths), "wide_vs_best_k": _gain(wide, lengths)}
    for name in dict.fromkeys(text.data_set for text in texts.texts):
        own, theirs = {h: each.of(name) for h, each in wide.items()}, {k: lengths[k].of(name) for k in lengths}
        thresholds = {"h to 0.9": {h: own[h] for h in THRESHOLDS}, "h to 0.999": own}
        gains = {f"÷ best K, {which}": str(_gain(some, theirs)) for which, some in thresholds.items()}
        rows.append({"data set": name, "trained on": name == heads.trained_on, **gains})
        if name == heads.trained_on:
            figures["in_distribution"] = _gain(thresholds["h to 0.9"], theirs)
            figures["wide_in_distribution"] = _gain(own, theirs)
    elsewhere = [n for n in dict.fromkeys(t.data_set for t in texts.texts) if n != heads.trained_on]
    others = tuple(text for text in texts.texts if text.data_set in elsewhere)
    if others:
        figures["out_of_distribution"] = _fresh_gain(bench, others, texts.table)
    figures["with_cheaper_drafts"] = _fresh_gain(bench, texts.texts, find_costs(ON_A100_13))
    figures["analytic_vs_specdecpp"] = ratio_of_sums(best_on_other_half(plus), texts.under(papers_analytic()).ms)
    curves = [Curve("SpecDec++", _rates(list(wide.values()))), Curve("SpecDec", _rates(list(lengths.values())))]
    picture = Picture("discard rate", "verification rate", curves)
    return PaperFindings(figures, {f"Costs of {texts.table.name}": rows}, {"frontier": picture})


def _gain(plus: dict[float, ReplayedRule], lengths: dict[int, ReplayedRule]) -> PaperFigure:
    return ratio_of_sums(best_on_other_half(lengths), best_on_other_half(plus))


def _fresh_gain(bench: PapersBench, texts: Sequence[RecordedText], table: CostTable) -> PaperFigure:
    some = ReplayedTexts((), tuple(texts), table)
    return _gain(swept(bench, some), {k: some.under(fixed(bench, k)) for k in LENGTHS})


def _rates(found: Sequence[ReplayedRule]) -> list[tuple[float, float]]:
    """Return discard and verification rates."""
    return [
        (float((f.drafted - f.accepted).sum() / f.tokens.sum()), float(f.rounds.sum() / f.tokens.sum())) for f in found
    ]


def shapes(bench: PapersBench, sizes: PaperSizes) -> PaperFindings:
    """SpecDec++, Table 3: heads by w_rej and D, each with its best threshold."""
    heads, rows, found = heads_of(bench, sizes), [], dict[tuple[Shape, float], ReplayedRule]()
    for shape in SHAPES if bench.full else SMALL_SHAPES:
        plus = swept(bench, ReplayedTexts((), heads.texts(shape), find_costs(ON_TWO_A100)))
        found |= {(shape, h): each for h, each in plus.items()}
        best = max(plus, key=lambda h: plus[h].rate)
        rows.append({"w_rej": shape[0], "D": shape[1], "best h": best, "tokens a second": plus[best].rate})
    papers = best_on_other_half({key: each for key, each in found.items() if key[0] == BEST})
    light = [float(row["best h"]) for row in rows if row["w_rej"] == min(w for w, _ in SMALL_SHAPES)]
    heavy = [float(row["best h"]) for row in rows if row["w_rej"] == BEST[0]]
    figures = {
        "papers_shape_vs_best": ratio_of_sums(best_on_other_half(found), papers),
        "threshold_6_minus_1": mean_of(np.subtract(heavy, light[: len(heavy)])),
    }  # fmt: skip
    return PaperFindings(figures, {"Heads": rows})


SMALL, FULL = PaperSizes(4, 32, minutes=3), PaperSizes(20, 128, minutes=5)
AGAINST_LENGTHS = PaperExperiment(against_lengths, SMALL, FULL, "heads")
SHAPES_OF_HEADS = PaperExperiment(shapes, SMALL, replace(FULL, minutes=15))
