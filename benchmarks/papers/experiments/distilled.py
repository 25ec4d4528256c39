"""OSD's Table 1 by `distil`: whose tokens a draft learns behind, and by which distance, paired over texts."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import TypeAdapter

from benchmarks.distil.arms import ORIGINAL, DistilArm, arms_of
from benchmarks.distil.bench import LOG, DistilCell, DistilPlan
from benchmarks.distil.result import REFERENCE, tables_of
from benchmarks.papers.claims import PaperFigure, difference_of_shares
from benchmarks.papers.entry import PaperExperiment, PaperFindings, PapersBench, PaperSizes

TEMPERATURES = {True: (0.0, 1.0), False: (0.0,)}
POSITIONS = {True: 10_000, False: 400}
"""Positions of each data set that a draft learns from at most, once an epoch: full and small."""
EPOCHS = 2
LINES = TypeAdapter(DistilCell)
FORWARD = "forward_kl"


def cells_of(bench: PapersBench, sizes: PaperSizes) -> list[DistilCell]:
    """Return the cells of the table; a stopped run goes on in the shared folder."""
    cells: list[DistilCell] = bench.once("distil", lambda: _measured(bench, sizes))
    return cells


def _measured(bench: PapersBench, sizes: PaperSizes) -> list[DistilCell]:
    from benchmarks.distil.table import bench_table
    from osd.models.pair import load_pair

    out, serve = bench.folder(f"distil-{sizes.texts}x{sizes.tokens}"), bench.settings.serve
    arms = [arm for arm in arms_of(None, None) if arm.name not in ("SF", "MixF") or arm.loss == FORWARD]
    plan = DistilPlan(arms, TEMPERATURES[bench.full], EPOCHS, POSITIONS[bench.full], sizes.tokens, 1.0, out)
    pair = load_pair(bench.target, bench.draft, device=serve.device, dtype=serve.dtype)
    tests = max(2, sizes.texts // 4)
    result = bench_table(
        pair, bench.settings, plan, bench.watch, prompts=bench.prompts, requests=sizes.texts, test_requests=tests,
        seed=bench.seed,
    )  # fmt: skip
    if result.interrupted:
        raise KeyboardInterrupt
    return [LINES.validate_json(line) for line in (out / LOG).read_text("utf-8").splitlines()]


def table(bench: PapersBench, sizes: PaperSizes) -> PaperFindings:
    """Compare all drafts with TF and forward KL on the same texts of all data sets."""
    cells = cells_of(bench, sizes)
    others = {
        "original": DistilArm(ORIGINAL), "ft": DistilArm("FT", "cross_entropy"), "sf": DistilArm("SF", FORWARD),
        "mixf": DistilArm("MixF", FORWARD), "reverse_kl": DistilArm("TF", "reverse_kl"), "jsd": DistilArm("TF", "jsd"),
    }  # fmt: skip
    figures = {f"tf_minus_{name}": _less(cells, arm, 0.0) for name, arm in others.items()}
    if any(cell.temperature for cell in cells):
        figures |= {f"tf_minus_{name}_sampled": _less(cells, arm, 1.0) for name, arm in others.items()}
    return PaperFindings(figures, tables_of(cells))


def _less(cells: Sequence[DistilCell], arm: DistilArm, temperature: float) -> PaperFigure:
    """Return α of TF with forward KL less that of another draft, over the texts of all data sets."""
    hits: dict[DistilArm, list[float]] = {REFERENCE: [], arm: []}
    positions: list[int] = []
    for cell in cells:
        if cell.temperature == temperature and cell.job.arm in hits:
            hits[cell.job.arm] += cell.accepted
            positions += cell.positions if cell.job.arm == REFERENCE else []
    return difference_of_shares(hits[REFERENCE], hits[arm], positions)


TABLE = PaperExperiment(table, PaperSizes(8, 16, minutes=6), PaperSizes(400, 64, minutes=28))
