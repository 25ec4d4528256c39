"""What papers compute from their own numbers, computed again: no model, no error."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from benchmarks.papers.claims import exact
from benchmarks.papers.entry import Curve, PaperExperiment, PaperFindings, PapersBench, PaperSizes, Picture

TABLE_1 = {
    "Vicuna-7B Spider": (0.28, 0.76, 2.42), "Vicuna-7B Gsm8k": (0.58, 0.75, 1.43),
    "Vicuna-7B Code": (0.38, 0.65, 1.64), "Vicuna-7B Alpaca": (0.57, 0.67, 1.22),
    "T5-XL Spider": (0.13, 0.78, 3.06), "T5-XL Gsm8k": (0.29, 0.62, 1.76), "T5-XL Code": (0.28, 0.81, 2.72),
    "T5-XL Alpaca": (0.39, 0.63, 1.55),
}  # fmt: skip
"""OSD's Table 1: α before and after (teacher sampling), and the speed-up that section 4.2.2 expects of it."""
MS_PER_TOKEN = {
    "Llama-3.2-1B": (1.24, 8.87), "Llama-3.1-8B": (8.03, 16.65), "vicuna-68m": (0.068, 1.76),
    "vicuna-160m": (0.16, 5.61), "vicuna-7b": (6.74, 14.29), "vicuna-13b": (13.0, 20.15),
}  # fmt: skip
"""GammaTune's Table 1: billions of parameters, and milliseconds a token. The 70B model, in int4, is another number type
and left out."""
GRID = np.arange(0.05, 0.96, 0.05)


def tokens_per_pass(alpha: float, gamma: int) -> float:
    """Return E|ỹ| = (1 − α^(γ+1)) ÷ (1 − α): OSD's Eq. 1."""
    return float(sum(alpha**i for i in range(gamma + 1)))


def speed_up(alpha: float, gamma: int, c: float) -> float:
    """Return E(speed-up) of OSD's Eq. 1: tokens a pass ÷ (γ c + 1)."""
    return tokens_per_pass(alpha, gamma) / (gamma * c + 1)


def best_window(alpha: float, c: float, most: int = 64) -> int:
    """Return the γ of most tokens a time by Eq. 1 of on-the-fly adaptation, where verifying costs one target pass."""
    return max(range(most + 1), key=lambda gamma: speed_up(alpha, gamma, c))


def expected_speed_ups(_: PapersBench, __: PaperSizes) -> PaperFindings:
    """OSD, A.3: speed-up over speculative decoding from the acceptance of its Table 1, k = 5."""
    rows: list[dict[str, Any]] = [
        {"pair": name, "α before": a, "α after": b, "printed": printed,
         "computed": tokens_per_pass(b, 5) / tokens_per_pass(a, 5)}
        for name, (a, b, printed) in TABLE_1.items()
    ]  # fmt: skip
    off = max(abs(float(row["computed"]) / float(row["printed"]) - 1) for row in rows)
    return PaperFindings({"off_by": exact(off)}, {"Expected speed-up": rows})


def speed_up_surface(_: PapersBench, __: PaperSizes) -> PaperFindings:
    """OSD, Figure 8: speed-up over α for several c and k."""
    lines = [(c, k) for c in (0.05, 0.1, 0.2) for k in (5, 8)]
    curves = [Curve(f"c = {c}, k = {k}", [(float(a), speed_up(a, k, c)) for a in GRID]) for c, k in lines]
    doubled = [speed_up(2 * a, k, c) / speed_up(a, k, c) for c, k in lines for a in GRID if 2 * a < 1]
    slow = max(speed_up(0.1, k, c) for c, k in lines)
    figures = {
        "speed_up_at_alpha_0.1": exact(slow), "least_gain_of_doubling": exact(min(doubled)),
        "most_gain_of_doubling": exact(max(doubled)),
    }  # fmt: skip
    return PaperFindings(figures, pictures={"surface": Picture("α", "speed-up", curves)})


def flops(_: PapersBench, __: PaperSizes) -> PaperFindings:
    """OSD, A.4: (k + 1) F_target ÷ ((k + 3a) F_draft) of both pairs, and what LMSYS-Chat-1M took of eight A100."""
    pairs = {"Vicuna-7B, LLaMA-160M": (7.0, 0.16, 3.0, 18.75), "Flan-T5-XL, T5-small": (3.0, 0.08, 4.3, 12.6)}
    rows: list[dict[str, Any]] = [
        {"pair": name, "printed": printed, "computed": 6 * target / ((5 + 3 * a) * draft)}
        for name, (target, draft, a, printed) in pairs.items()
    ]
    served = 2000 * 1_000_000 / (125 * 24 * 3600) * 30e9 * 2
    rows.append({"pair": "LMSYS-Chat-1M, GFLOP/s of a 30B model", "printed": 5.5, "computed": served / 1e9})
    off = max(abs(float(row["computed"]) / float(row["printed"]) - 1) for row in rows[:2])
    figures = {
        "off_by": exact(off), "least_ratio": exact(min(float(row["computed"]) for row in rows[:2])),
        "lmsys_gflops": exact(served / 1e9), "utilisation": exact(served / (8 * 312e12)),
    }  # fmt: skip
    return PaperFindings(figures, {"FLOPs": rows})


def bandwidth(_: PapersBench, __: PaperSizes) -> PaperFindings:
    """OSD, Table 5: gigabytes of weights that are read for L tokens; I = 8 updates' interval (its column says T)."""
    length, target, draft, interval, before, after = 128, 14.0, 0.32, 8, 1.4, 3.4
    found = {
        "original": (length * target, 1792.0),
        "VSD": (length / before * target + length * draft, 1320.0),
        "OSD": (length / after * target + length * draft + draft * length / interval, 573.0),
    }
    rows: list[dict[str, Any]] = [
        {"": name, "printed": printed, "computed": computed} for name, (computed, printed) in found.items()
    ]
    off = max(abs(computed / printed - 1) for computed, printed in found.values())
    figures = {"off_by": exact(off), "osd_of_vsd": exact(found["OSD"][0] / found["VSD"][0])}
    return PaperFindings(figures, {"Gigabytes read for 128 tokens": rows})


def measured_and_expected(_: PapersBench, __: PaperSizes) -> PaperFindings:
    """OSD, Table 7's rows of theory, k = 8, from its α and c."""
    alphas = (0.5, 0.6, 0.7, 0.8, 0.9)
    printed = {
        "33B, c = 0.08": (0.08, (1.31, 1.59, 1.96, 2.46, 3.12), (1.28, 1.44, 1.65, 2.01, 2.63)),
        "7B, c = 0.13": (0.13, (0.98, 1.21, 1.57, 2.12, 3.00), (0.95, 1.17, 1.30, 1.68, 2.55)),
    }
    rows: list[dict[str, Any]] = [
        {"pair": name, "α": a, "printed theory": theory, "Eq. 1": speed_up(a, 8, c), "printed measured": took}
        for name, (c, theories, measured) in printed.items()
        for a, theory, took in zip(alphas, theories, measured, strict=True)
    ]
    off = {
        name: max(abs(row["Eq. 1"] / row["printed theory"] - 1) for row in rows if row["pair"] == name)
        for name in printed
    }
    dear, cheap = off.values()
    below = [row["printed measured"] / row["printed theory"] for row in rows]
    figures = {
        "theory_off_by_33b": exact(dear), "theory_off_by_7b": exact(cheap),
        "least_measured_of_theory": exact(min(below)),
    }  # fmt: skip
    return PaperFindings(figures, {"Speed-up at k = 8": rows})


def windows(_: PapersBench, __: PaperSizes) -> PaperFindings:
    """On-the-fly adaptation, Figures 2 and 4: the best window by α and c, and what follows of it."""
    ratios = (0.02, 0.05, 0.1, 0.2, 0.4)
    best = {c: [best_window(float(a), c) for a in GRID] for c in ratios}
    curves = [Curve(f"c = {c}", [(float(a), float(g)) for a, g in zip(GRID, best[c], strict=True)]) for c in ratios]
    by_alpha = [float(np.diff(line).min()) for line in best.values()]
    by_cost = [best[small][i] - best[large][i] for small, large in pairwise(ratios)
               for i in range(len(GRID))]  # fmt: skip
    tokens = {c: [tokens_per_pass(float(a), g) for a, g in zip(GRID, best[c], strict=True)] for c in ratios}
    accepted = {
        c: [t / g if g else np.nan for t, g in zip(tokens[c], best[c], strict=True)] for c in ratios
    }  # ρ = (1 − α^(γ+1)) ÷ ((1 − α) d) of the paper
    figures = {
        "least_step_with_alpha": exact(min(by_alpha)), "least_step_with_cost": exact(min(by_cost)),
        "least_step_of_tokens_a_pass": exact(min(float(np.diff(line).min()) for line in tokens.values())),
        "least_step_of_rho": exact(float(np.nanmin([np.diff(line) for line in accepted.values()]))),
        "most_rho": exact(float(np.nanmax(list(accepted.values())))),
    }  # fmt: skip
    return PaperFindings(figures, pictures={"best window": Picture("α", "γ", curves)})


def model_sizes(_: PapersBench, __: PaperSizes) -> PaperFindings:
    """GammaTune, Table 1: how much slower a model with ten times the parameters is, by every two of its models."""
    named = sorted(MS_PER_TOKEN.items(), key=lambda item: item[1][0])
    rows: list[dict[str, Any]] = [
        {"from": small, "to": large, "parameters ×": p1 / p0, "slower ×": t1 / t0,
         "slower per tenfold": float((t1 / t0) ** (1 / np.log10(p1 / p0)))}
        for i, (small, (p0, t0)) in enumerate(named) for large, (p1, t1) in named[i + 1 :] if p1 / p0 > 2
    ]  # fmt: skip
    slower = [float(row["slower per tenfold"]) for row in rows]
    nearest = min(rows, key=lambda row: abs(np.log10(float(row["parameters ×"])) - 1))
    figures = {
        "median_slower_per_tenfold": exact(float(np.median(slower))),
        "slower_at_about_tenfold": exact(float(nearest["slower ×"])),
    }
    return PaperFindings(figures, {"Milliseconds a token": rows})


EXPECTED_SPEED_UPS, SPEED_UP_SURFACE = PaperExperiment(expected_speed_ups), PaperExperiment(speed_up_surface)
FLOPS, BANDWIDTH = PaperExperiment(flops), PaperExperiment(bandwidth)
MEASURED_AND_EXPECTED, WINDOWS = PaperExperiment(measured_and_expected), PaperExperiment(windows)
MODEL_SIZES = PaperExperiment(model_sizes)
