"""On-the-fly adaptation's Tables 10 and 11 by `python -m benchmarks eagle`: does a depth that adapts help EAGLE-2?

An EAGLE draft learns from the target's answers first. Time is told by the costs of an A100, so errors are over texts
alone. What decides goes by the costs of the 7B target; tables show those of the 33B one beside.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from benchmarks.eagle.arms import ALONE, ANALYTIC, ANALYTIC_SIZED, EAGLE_2, FIXED, GOODPUT, DepthCell
from benchmarks.eagle.bench import COSTS, EaglePlan, decode_all, differing, tables_of, texts_by_arm
from benchmarks.eagle.told import Floats, ToldTexts
from benchmarks.papers.claims import PaperFigure, exact, jackknife, ratio_of_sums
from benchmarks.papers.entry import Curve, PaperExperiment, PaperFindings, PapersBench, PaperSizes, Picture
from benchmarks.papers.experiments.replays import best_on_other_half

LEARN, WARM = {True: 200, False: 12}, {True: 6, False: 1}
"""Answers of each data set to learn from, and prompts of each that rules learn from before any counts: full and
small."""


def cells_of(bench: PapersBench, sizes: PaperSizes) -> list[DepthCell]:
    """Return the decoded arms; a stopped run goes on in the shared folder."""
    return bench.once("eagle", lambda: _decoded(bench, sizes))  # type: ignore[no-any-return]


def _decoded(bench: PapersBench, sizes: PaperSizes) -> list[DepthCell]:
    from osd.models.pair import load_pair

    serve = bench.settings.serve
    pair = load_pair(bench.target, bench.draft, device=serve.device, dtype=serve.dtype)
    plan = EaglePlan(
        bench.prompts, LEARN[bench.full], sizes.texts, WARM[bench.full], sizes.tokens, _costs(bench), seed=bench.seed
    )
    out = bench.folder(f"eagle-{sizes.texts}x{sizes.tokens}")
    cells = decode_all(pair, bench.settings, plan, out, bench.watch)
    if bench.watch.stopped:
        raise KeyboardInterrupt
    return cells


def _costs(bench: PapersBench) -> tuple[str, ...]:
    return COSTS if bench.full else COSTS[:1]


def depths(bench: PapersBench, sizes: PaperSizes) -> PaperFindings:
    """Table 10: the analytic rule's depth against EAGLE-2's own, the best fixed depth and the target alone; goodput
    beside, and both with nodes left out that are not worth their verification."""
    cells = cells_of(bench, sizes)
    texts = texts_by_arm(cells, COSTS[0])
    best = best_on_other_half({depth: texts[arm.name] for depth, arm in FIXED.items()})
    figures = {"differing": exact(differing(cells))}
    for name, arm in (("analytic", ANALYTIC), ("sized", ANALYTIC_SIZED), ("goodput", GOODPUT)):
        figures[f"{name}_vs_depth_6"] = ratio_of_sums(texts[FIXED[EAGLE_2].name].ms, texts[arm.name].ms)
        figures[f"{name}_vs_best_depth"] = ratio_of_sums(best, texts[arm.name].ms)
        figures[f"{name}_vs_alone"] = ratio_of_sums(texts[ALONE.name].ms, texts[arm.name].ms)
    speeds, _ = tables_of(cells, _costs(bench))
    return PaperFindings(figures, speeds, {"depth": _picture(cells, bench)})


def _picture(cells: list[DepthCell], bench: PapersBench) -> Picture:
    curves = []
    for name in _costs(bench):
        texts = texts_by_arm(cells, name)
        alone = float(texts[ALONE.name].ms.sum())
        fixed = [(float(depth), alone / float(texts[arm.name].ms.sum())) for depth, arm in FIXED.items()]
        rule = alone / float(texts[ANALYTIC.name].ms.sum())
        curves += [Curve(f"fixed, {name}", fixed), Curve(f"analytic, {name}", [(min(FIXED), rule), (max(FIXED), rule)])]
    return Picture("depth", "÷ target alone", curves)


def in_detail(bench: PapersBench, sizes: PaperSizes) -> PaperFindings:
    """Table 11: tokens a second served, selected from trees and verified, and acceptance, of adaptive depth and of
    EAGLE-2's own."""
    cells = cells_of(bench, sizes)
    texts = texts_by_arm(cells, COSTS[0])
    ours, base = texts[ANALYTIC.name], texts[FIXED[EAGLE_2].name]
    figures = {
        "serving": ratio_of_sums(base.ms, ours.ms),
        "speculation": _ratio(ours, base, lambda t: t.nodes, lambda t: t.draft_ms),
        "verification": _ratio(ours, base, lambda t: t.nodes + t.rounds, lambda t: t.verify_ms),
        "acceptance_gap": _gap(ours, base, lambda t: t.accepted, lambda t: t.levels),
    }  # fmt: skip
    _, details = tables_of(cells, _costs(bench))
    return PaperFindings(figures, details)


Sums = Callable[[ToldTexts], Floats]


def _share(arm: ToldTexts, above: Sums, below: Sums, keep: npt.NDArray[np.bool_]) -> float:
    """Return Σ above ÷ Σ below over the texts that are kept; 0 where nothing is below."""
    under = float(below(arm)[keep].sum())
    return float(above(arm)[keep].sum()) / under if under else 0.0


def _ratio(ours: ToldTexts, base: ToldTexts, above: Sums, below: Sums) -> PaperFigure:
    """Return Σ above ÷ Σ below of one arm ÷ that of another."""
    return jackknife(lambda keep: _share(ours, above, below, keep) / _share(base, above, below, keep), len(ours.ms))


def _gap(ours: ToldTexts, base: ToldTexts, above: Sums, below: Sums) -> PaperFigure:
    """Return Σ above ÷ Σ below of one arm − that of another."""
    return jackknife(lambda keep: _share(ours, above, below, keep) - _share(base, above, below, keep), len(ours.ms))


SMALL, FULL = PaperSizes(2, 16, minutes=3), PaperSizes(24, 48, minutes=14)
DEPTHS, IN_DETAIL = (PaperExperiment(run, SMALL, FULL, "EAGLE") for run in (depths, in_detail))
