"""On-the-fly adaptation's Tables 10 and 11 by `python -m benchmarks eagle`: does a depth that adapts help EAGLE-2?

An EAGLE draft learns from the target's answers first. Time is told by the costs of an A100, so errors are over texts
alone. What decides goes by the costs of the 7B target; tables show those of the others beside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import sub, truediv

import numpy as np
import numpy.typing as npt

from benchmarks.eagle import bench as eagle
from benchmarks.figures import PaperFigure, exact, jackknife, ratio_of_sums
from benchmarks.gamma.costed import CostedTexts, Floats
from benchmarks.papers.experiment import Curve, PaperExperiment, PaperFindings, PapersBench, Picture, shared
from benchmarks.papers.experiments.replays import best_on_other_half

Sums = Callable[[CostedTexts], Floats]


class EagleExperiment(PaperExperiment):
    """An experiment over the decoded arms."""

    learn: int
    """Answers of each data set to learn from."""
    warm: int
    """Prompts of each data set that rules learn from before any counts."""
    costs: tuple[str, ...]
    """Profiles; the first decides."""

    @shared("eagle")
    def cells(self, bench: PapersBench) -> Sequence[eagle.DepthCell]:
        """Return the decoded arms; a stopped run goes on in the shared folder."""
        plan = eagle.EaglePlan(
            out=bench.folder(self.named("eagle")), prompts=tuple(bench.prompts), learn=self.learn, count=self.texts,
            warm=self.warm, max_tokens=self.tokens, costs=self.costs, seed=bench.seed,
        )  # fmt: skip
        return eagle.decode_all(plan, bench.pair, bench.settings, bench.watch)


class Depths(EagleExperiment):
    """Table 10: the analytic rule's depth against EAGLE-2's own, the best fixed depth and the target alone; goodput
    beside, and both with nodes left out that are not worth their verification."""

    def run(self, bench: PapersBench) -> PaperFindings:
        """Compare milliseconds on the same texts."""
        cells = self.cells(bench)
        ms = {name: texts.ms for name, texts in eagle.texts_by_arm(cells, self.costs[0]).items()}
        best = best_on_other_half({depth: ms[arm.name] for depth, arm in eagle.FIXED.items()})
        against = {"depth_6": ms[eagle.FIXED[eagle.EAGLE_2].name], "best_depth": best, "alone": ms[eagle.ALONE.name]}
        figures = {
            f"{name}_vs_{other}": ratio_of_sums(theirs, ms[arm.name])
            for name, arm in (("analytic", eagle.ANALYTIC), ("sized", eagle.ANALYTIC_SIZED), ("goodput", eagle.GOODPUT))
            for other, theirs in against.items()
        }  # fmt: skip
        figures["osds_levels_vs_depth_6"] = ratio_of_sums(against["depth_6"], ms[eagle.OURS.name])
        figures["differing"] = exact(eagle.differing(cells))
        curves = [curve for costs in self.costs for curve in self._curves(cells, costs)]
        return PaperFindings(
            figures, eagle.speeds_of(cells, self.costs), {"depth": Picture("depth", "÷ target alone", curves)}
        )

    def _curves(self, cells: Sequence[eagle.DepthCell], costs: str) -> list[Curve]:
        ms = {name: float(texts.ms.sum()) for name, texts in eagle.texts_by_arm(cells, costs).items()}
        fixed = [(float(depth), ms[eagle.ALONE.name] / ms[arm.name]) for depth, arm in eagle.FIXED.items()]
        rule = ms[eagle.ALONE.name] / ms[eagle.ANALYTIC.name]
        adaptive = [(float(min(eagle.FIXED)), rule), (float(max(eagle.FIXED)), rule)]
        return [Curve(f"fixed, {costs}", fixed), Curve(f"analytic, {costs}", adaptive)]


class InDetail(EagleExperiment):
    """Table 11: tokens a second served, selected from trees and verified, and acceptance, of adaptive depth and of
    EAGLE-2's own."""

    def run(self, bench: PapersBench) -> PaperFindings:
        """Compare shares of sums on the same texts."""
        cells = self.cells(bench)
        texts = eagle.texts_by_arm(cells, self.costs[0])
        ours, base = texts[eagle.ANALYTIC.name], texts[eagle.FIXED[eagle.EAGLE_2].name]
        figures = {
            "serving": ours.faster_than(base),
            "speculation": _jackknifed(truediv, ours, base, lambda t: t.drafted, lambda t: t.draft_ms),
            "verification": _jackknifed(truediv, ours, base, lambda t: t.drafted + t.rounds, lambda t: t.verify_ms),
            "acceptance_gap": _jackknifed(sub, ours, base, lambda t: t.accepted, lambda t: t.passes),
        }  # fmt: skip
        return PaperFindings(figures, eagle.details_of(cells, self.costs))


def _jackknifed(
    compare: Callable[[float, float], float], ours: CostedTexts, base: CostedTexts, above: Sums, below: Sums
) -> PaperFigure:
    """Compare Σ above ÷ Σ below of one arm with that of another."""

    def share(arm: CostedTexts, keep: npt.NDArray[np.bool_]) -> float:
        under = float(below(arm)[keep].sum())
        return float(above(arm)[keep].sum()) / under if under else 0.0

    return jackknife(lambda keep: compare(share(ours, keep), share(base, keep)), len(ours.ms))
