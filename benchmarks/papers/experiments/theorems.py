"""Theorems of on-the-fly adaptation, on texts of known acceptance and on the pair's own."""

from __future__ import annotations

import numpy as np

from benchmarks.gamma.costs import find_costs
from benchmarks.gamma.rounds import RecordedText
from benchmarks.papers.claims import exact, mean_of
from benchmarks.papers.entry import PaperExperiment, PaperFindings, PapersBench, PaperSizes
from benchmarks.papers.experiments.gamma_rules import FULL, ON_TWO_A100, SMALL
from benchmarks.papers.experiments.replays import (
    DEPTH,
    PAPERS_H,
    Make,
    ReplayedTexts,
    fixed,
    papers_analytic,
    replayed,
)

BETAS = (0.2, 0.5, 0.8, 0.95)
LENGTH = 256
"""Tokens of a made text."""


def made_text(beta: float, seed: int, length: int = LENGTH) -> RecordedText:
    """Return a sampled text of which each drafted token is accepted with chance β, whatever came before."""
    shape = (length, DEPTH)
    chances, nothing = np.full(shape, beta, np.float32), np.zeros(shape, np.int32)
    prompt, text = np.array([1 + seed], np.int32), np.arange(length, dtype=np.int32)
    return RecordedText(f"β = {beta:g}", 1.0, length, prompt, text, nothing, chances, chances, chances)


def estimates(bench: PapersBench, sizes: PaperSizes) -> PaperFindings:
    """Theorem 1: variance of Eq. 2 over the last h rounds, under the analytic rule ÷ under a window of 5."""
    figures, rows = {}, []
    for beta in BETAS:
        ratios, kept = [], []
        for seed in range(sizes.seeds):
            number = 1000 * (bench.seed + seed)
            texts = ReplayedTexts(
                (), tuple(made_text(beta, number + i) for i in range(sizes.texts)), find_costs(ON_TWO_A100)
            )
            ours, theirs = (_estimates(texts, make) for make in (papers_analytic(), fixed(bench, 5)))
            ratios.append(float(np.var(ours) / np.var(theirs)))
            kept.append((np.std(ours), np.std(theirs), np.abs(ours - beta).mean(), np.abs(theirs - beta).mean()))
        figures[f"variance_ratio_{beta:g}"] = mean_of(ratios)
        deviations = np.mean(kept, axis=0).tolist()
        names = ("deviation, adaptive", "deviation, fixed", "error, adaptive", "error, fixed")
        rows.append({"β": beta, "variance ÷ fixed": str(mean_of(ratios)), **dict(zip(names, deviations, strict=True))})
    return PaperFindings(figures, {f"Eq. 2 over the last {PAPERS_H} rounds": rows})


def _estimates(texts: ReplayedTexts, make: Make) -> np.ndarray:
    """Return Eq. 2 at the end of each text."""
    from benchmarks.gamma.simulate import Simulator

    found = []
    for number, text in enumerate(texts.texts):
        # a rule of its own for each text, and coins of its own
        seen = Simulator(make, texts.table, seed=int(text.prompt[0]) + number).run([text]).by_request[0]
        last = [each for each in seen if each.drafted][-PAPERS_H:]
        accepted, rejected = sum(each.accepted for each in last), sum(each.rejected for each in last)
        found.append(accepted / max(1, accepted + rejected))
    return np.array(found)


def throughput(bench: PapersBench, sizes: PaperSizes) -> PaperFindings:
    """Theorem 2: L ÷ (b n + a L ÷ ρ) against what the rounds took."""
    texts = replayed(bench, sizes, ON_TWO_A100)
    rows = []
    for gamma in range(1, 13):
        found = texts.under(fixed(bench, gamma))
        length, n, drafted = found.tokens.sum(), found.rounds.sum(), found.drafted.sum()
        a, b = texts.table.draft_ms(1, 1), texts.table.verify_ms(1, gamma + 1)
        worded = length / (b * n + a * length / max(found.accepted.sum() / drafted, 1e-9))
        proved = length / (b * n + a * drafted)
        rows.append(
            {"γ": gamma, "as worded": float(1e3 * worded), "as proved": float(1e3 * proved), "replayed": found.rate}
        )
    off = {name: max(abs(row[name] / row["replayed"] - 1) for row in rows) for name in ("as worded", "as proved")}
    figures = {"off_by": exact(off["as worded"]), "off_by_as_proved": exact(off["as proved"])}
    return PaperFindings(figures, {"Tokens a second": rows})


ESTIMATES = PaperExperiment(estimates, PaperSizes(20, LENGTH, 4, minutes=1), PaperSizes(200, LENGTH, 12, minutes=2))
THROUGHPUT = PaperExperiment(throughput, SMALL, FULL)
