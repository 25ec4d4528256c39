"""What papers compute from their own numbers, computed again: no model, no error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.figures import exact
from benchmarks.papers.experiment import Curve, PaperExperiment, PaperFindings, PapersBench, Picture

GRID = [float(alpha) for alpha in np.arange(0.05, 0.96, 0.05)]


def tokens_per_pass(alpha: float, gamma: int) -> float:
    """Return E|ỹ| = (1 − α^(γ+1)) ÷ (1 − α): OSD's Eq. 1."""
    return float(sum(alpha**i for i in range(gamma + 1)))


def speed_up(alpha: float, gamma: int, c: float) -> float:
    """Return E(speed-up) of OSD's Eq. 1: tokens a pass ÷ (γ c + 1)."""
    return tokens_per_pass(alpha, gamma) / (gamma * c + 1)


def best_window(alpha: float, c: float, most: int = 64) -> int:
    """Return the γ of most tokens a time by Eq. 1 of on-the-fly adaptation, where verifying costs one target pass."""
    return max(range(most + 1), key=lambda gamma: speed_up(alpha, gamma, c))


def off_by(rows: Sequence[Mapping[str, Any]], computed: str = "computed", printed: str = "printed") -> float:
    """Return how far what is computed is from what is printed, where it is farthest."""
    return max(abs(float(row[computed]) / float(row[printed]) - 1) for row in rows)


class ExpectedSpeedUps(PaperExperiment):
    """OSD, A.3: speed-up over speculative decoding from the acceptance of its Table 1."""

    gamma: int
    pairs: dict[str, tuple[float, float, float]]
    """α before and after (teacher sampling), and the speed-up that section 4.2.2 expects of it."""

    def run(self, bench: PapersBench) -> PaperFindings:
        """Compute the formula for each pair."""
        rows: list[dict[str, Any]] = [
            {"pair": name, "α before": a, "α after": b, "printed": printed,
             "computed": tokens_per_pass(b, self.gamma) / tokens_per_pass(a, self.gamma)}
            for name, (a, b, printed) in self.pairs.items()
        ]  # fmt: skip
        return PaperFindings({"off_by": exact(off_by(rows))}, {"Expected speed-up": rows})


class SpeedUpSurface(PaperExperiment):
    """OSD, Figure 8: speed-up over α for several c and k."""

    costs: tuple[float, ...]
    gammas: tuple[int, ...]

    def run(self, bench: PapersBench) -> PaperFindings:
        """Compute Eq. 1 over the grid."""
        lines = [(c, k) for c in self.costs for k in self.gammas]
        curves = [Curve(f"c = {c}, k = {k}", [(a, speed_up(a, k, c)) for a in GRID]) for c, k in lines]
        doubled = [speed_up(2 * a, k, c) / speed_up(a, k, c) for c, k in lines for a in GRID if 2 * a < 1]
        figures = {
            "speed_up_at_alpha_0.1": exact(max(speed_up(0.1, k, c) for c, k in lines)),
            "least_gain_of_doubling": exact(min(doubled)), "most_gain_of_doubling": exact(max(doubled)),
        }  # fmt: skip
        return PaperFindings(figures, pictures={"surface": Picture("α", "speed-up", curves)})


class Flops(PaperExperiment):
    """OSD, A.4: (k + 1) F_target ÷ ((k + 3a) F_draft) of both pairs, and what LMSYS-Chat-1M took of eight A100."""

    pairs: dict[str, tuple[float, float, float, float]]
    """Billions of parameters of target and draft, a, and the ratio that is printed."""

    def run(self, bench: PapersBench) -> PaperFindings:
        """Compute the formulas."""
        rows: list[dict[str, Any]] = [
            {"pair": name, "printed": printed, "computed": 6 * target / ((5 + 3 * a) * draft)}
            for name, (target, draft, a, printed) in self.pairs.items()
        ]
        served = 2000 * 1_000_000 / (125 * 24 * 3600) * 30e9 * 2  # tokens a second of 125 days, for 30B parameters
        figures = {
            "off_by": exact(off_by(rows)), "least_ratio": exact(min(row["computed"] for row in rows)),
            "lmsys_gflops": exact(served / 1e9), "utilisation": exact(served / (8 * 312e12)),
        }  # fmt: skip
        rows.append({"pair": "LMSYS-Chat-1M, GFLOP/s of a 30B model", "printed": 5.5, "computed": served / 1e9})
        return PaperFindings(figures, {"FLOPs": rows})


class Bandwidth(PaperExperiment):
    """OSD, Table 5: gigabytes of weights that are read for so many tokens."""

    length: int
    target: float
    """Gigabytes."""
    draft: float
    interval: int
    """I: requests between updates (its column says T)."""
    tokens_a_pass: tuple[float, float]
    """Without learning, and with."""
    printed: tuple[float, float, float]

    def run(self, bench: PapersBench) -> PaperFindings:
        """Compute the formulas."""
        before, after = (self.length / each * self.target for each in self.tokens_a_pass)
        drafted = self.length * self.draft
        computed = [self.length * self.target, before + drafted, after + drafted + drafted / self.interval]
        rows: list[dict[str, Any]] = [
            {"": name, "printed": printed, "computed": each}
            for name, printed, each in zip(("original", "VSD", "OSD"), self.printed, computed, strict=True)
        ]
        figures = {"off_by": exact(off_by(rows)), "osd_of_vsd": exact(computed[2] / computed[1])}
        return PaperFindings(figures, {f"Gigabytes read for {self.length} tokens": rows})


class MeasuredAndExpected(PaperExperiment):
    """OSD, Table 7's rows of theory, from its α and c."""

    gamma: int
    alphas: tuple[float, ...]
    costs: dict[str, float]
    """c by pair."""
    theory: dict[str, tuple[float, ...]]
    measured: dict[str, tuple[float, ...]]

    def run(self, bench: PapersBench) -> PaperFindings:
        """Compute Eq. 1 beside both printed rows."""
        rows, figures = [], {}
        for name, c in self.costs.items():
            mine: list[dict[str, Any]] = [
                {"pair": f"{name}, c = {c}", "α": a, "printed theory": theory, "Eq. 1": speed_up(a, self.gamma, c),
                 "printed measured": took}
                for a, theory, took in zip(self.alphas, self.theory[name], self.measured[name], strict=True)
            ]  # fmt: skip
            figures[f"theory_off_by_{name.lower()}"] = exact(off_by(mine, "Eq. 1", "printed theory"))
            rows += mine
        below = [row["printed measured"] / row["printed theory"] for row in rows]
        figures["least_measured_of_theory"] = exact(min(below))
        return PaperFindings(figures, {f"Speed-up at k = {self.gamma}": rows})


class Windows(PaperExperiment):
    """On-the-fly adaptation, Figures 2 and 4: the best window by α and c, and what follows of it."""

    costs: tuple[float, ...]

    def run(self, bench: PapersBench) -> PaperFindings:
        """Compute windows, and ρ = (1 − α^(γ+1)) ÷ ((1 − α) d) of the paper."""
        best = np.array([[best_window(a, c) for a in GRID] for c in self.costs])
        tokens = np.array([[tokens_per_pass(a, g) for a, g in zip(GRID, line, strict=True)] for line in best])
        rho = np.where(best > 0, tokens / np.maximum(best, 1), np.nan)
        steps = {
            "with_alpha": np.diff(best), "with_cost": -np.diff(best, axis=0), "of_tokens_a_pass": np.diff(tokens),
            "of_rho": np.diff(rho),
        }  # fmt: skip
        figures = {f"least_step_{name}": exact(np.nanmin(each)) for name, each in steps.items()}
        figures["most_rho"] = exact(np.nanmax(rho))
        curves = [
            Curve(f"c = {c}", [(a, float(g)) for a, g in zip(GRID, line, strict=True)])
            for c, line in zip(self.costs, best, strict=True)
        ]
        return PaperFindings(figures, pictures={"best window": Picture("α", "γ", curves)})


class ModelSizes(PaperExperiment):
    """GammaTune, Table 1: how much slower a model with ten times the parameters is, by every two of its models."""

    models: dict[str, tuple[float, float]]
    """Billions of parameters, and milliseconds a token."""

    def run(self, bench: PapersBench) -> PaperFindings:
        """Compare every two models of which one is at least twice the other."""
        named = sorted(self.models.items(), key=lambda item: item[1][0])
        rows: list[dict[str, Any]] = [
            {"from": small, "to": large, "parameters ×": p1 / p0, "slower ×": t1 / t0,
             "slower per tenfold": float((t1 / t0) ** (1 / np.log10(p1 / p0)))}
            for i, (small, (p0, t0)) in enumerate(named) for large, (p1, t1) in named[i + 1 :] if p1 / p0 > 2
        ]  # fmt: skip
        nearest = min(rows, key=lambda row: abs(np.log10(row["parameters ×"]) - 1))
        figures = {
            "median_slower_per_tenfold": exact(np.median([row["slower per tenfold"] for row in rows])),
            "slower_at_about_tenfold": exact(nearest["slower ×"]),
        }
        return PaperFindings(figures, {"Milliseconds a token": rows})
