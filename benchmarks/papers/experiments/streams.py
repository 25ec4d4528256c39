"""Learning while serving: `osd bench online` and `python -m benchmarks routes`, with errors over requests and seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter

from benchmarks.papers.claims import PaperFigure, difference_of_shares, mean_of, ratio_of_sums
from benchmarks.papers.entry import Curve, PaperExperiment, PaperFindings, PapersBench, PaperSizes, Picture
from benchmarks.routes.bench import TEACHING
from benchmarks.routes.result import ArmResult, RoutedRequest
from osd.bench.harness.report import save_json
from osd.demo.runner.measure import FinishedRequest, Whose, moving, recovered_after
from osd.demo.runner.source import Segment, segments_of

LINES = TypeAdapter(list[FinishedRequest])
BATCH = 4


def drawn(bench: PapersBench, sizes: PaperSizes, requests: int, seed: int) -> list[Segment]:
    """Return a segment for each data set."""
    found, problems = segments_of(
        [Path(name) for name in bench.prompts], requests, bench.seed + seed, target=bench.target,
        max_length=bench.settings.serve.max_length, max_new_tokens=sizes.tokens,
    )  # fmt: skip
    for problem in problems:
        bench.watch.say(problem)
    return found


def served(bench: PapersBench, sizes: PaperSizes) -> list[FinishedRequest]:
    """Return the requests of a run of `osd bench online`: lockstep, the draft alone, drafts distilled offline on each
    data set beside. Kept in the shared folder."""
    return bench.once("online", lambda: _served(bench, sizes))  # type: ignore[no-any-return]


def _served(bench: PapersBench, sizes: PaperSizes) -> list[FinishedRequest]:
    from rich.console import Console

    from osd.bench.online import run_bench_online

    folder = bench.folder("online")
    kept = folder / f"served-{sizes.texts}x{sizes.tokens}.json"
    if kept.exists():
        return LINES.validate_json(kept.read_bytes())
    out = next(path for i in range(1, 1 << 20) if not (path := folder / f"run-{i}").exists())
    results = run_bench_online(
        bench.settings, target=bench.target, draft=bench.draft, segments=drawn(bench, sizes, sizes.texts, 0), out=out,
        console=Console(quiet=True), max_new_tokens=sizes.tokens, batch=BATCH, drafter="causal", check_every=0,
    )  # fmt: skip
    if results.facts["interrupted"]:
        raise KeyboardInterrupt
    save_json(kept, [asdict(one) for one in results.served])
    return results.served


def online(bench: PapersBench, sizes: PaperSizes) -> PaperFindings:
    """OSD, Figures 3 and 4: the last third of each data set's requests, with the draft that learned, the frozen one
    and one distilled offline on all of them; and what a change of data set does."""
    requests = served(bench, sizes)
    names = list(dict.fromkeys(one.segment for one in requests))
    by_name = {name: [one for one in requests if one.segment == name] for name in names}
    late = [one for some in by_name.values() for one in some[-max(1, len(some) // 3) :]]
    early = [one for name in names[1:] for one in by_name[name][: max(1, len(by_name[name]) // 10)]]
    after = [one for name in names[1:] for one in by_name[name][-max(1, len(by_name[name]) // 3) :]]
    figures = {
        "online_minus_frozen": _gap(late, "frozen"), "online_vs_offline": _share(late, "offline"),
        "late_minus_early": _apart(_alpha(after), _alpha(early)),
        "requests_to_recover": mean_of([recovered_after(moving(by_name[n], "online")) or 0 for n in names[1:]]),
    }  # fmt: skip
    rows = [{"data set": name, **_row(by_name[name][-max(1, len(by_name[name]) // 3) :])} for name in names]
    both: tuple[Whose, Whose] = ("online", "frozen")
    curves = [Curve(whose, [(float(i), a) for i, a in enumerate(moving(requests, whose), 1)]) for whose in both]
    picture = Picture("requests", "α, last 50 requests", curves)
    return PaperFindings(figures, {"Last third of each data set": rows}, {"acceptance": picture})


def _row(some: Sequence[FinishedRequest]) -> dict[str, str]:
    return {"frozen": str(_alpha(some, "frozen")), "online": str(_alpha(some)), "offline": str(_alpha(some, "offline"))}


def _hits(some: Sequence[FinishedRequest], whose: Whose) -> list[float]:
    return [float(one.hits(whose)) for one in some]


def _alpha(some: Sequence[FinishedRequest], whose: Whose = "online") -> PaperFigure:
    return ratio_of_sums(_hits(some, whose), [one.emitted for one in some])


def _gap(some: Sequence[FinishedRequest], whose: Whose) -> PaperFigure:
    return difference_of_shares(_hits(some, "online"), _hits(some, whose), [one.emitted for one in some])


def _share(some: Sequence[FinishedRequest], whose: Whose) -> PaperFigure:
    return ratio_of_sums(_hits(some, "online"), _hits(some, whose))


def _apart(one: PaperFigure, other: PaperFigure) -> PaperFigure:
    """Return the difference of figures of different requests."""
    known = one.error is not None and other.error is not None
    error = float(np.hypot(one.error or 0, other.error or 0)) if known else None
    counts = [each.count for each in (one, other) if each.count is not None]
    return PaperFigure(one.value - other.value, error, min(counts, default=None))


def arms(
    bench: PapersBench, sizes: PaperSizes, order: str, names: Sequence[str], seed: int = 0
) -> dict[str, ArmResult]:
    """Return the arms of a run of `python -m benchmarks routes`, which goes on in the shared folder."""
    name = f"routes-{order}-{sizes.texts}x{sizes.tokens}-s{seed}"
    made: dict[str, ArmResult] = bench.once(name, lambda: _arms(bench, sizes, order, names, seed, bench.folder(name)))
    return made


def _arms(
    bench: PapersBench, sizes: PaperSizes, order: str, names: Sequence[str], seed: int, out: Path
) -> dict[str, ArmResult]:
    from benchmarks.routes.bench import bench_routes

    segments = drawn(bench, sizes, sizes.texts + TEACHING, seed)[: None if order == "mixed" else 2]
    result = bench_routes(
        bench.settings, bench.watch, target=bench.target, draft=bench.draft, segments=segments, arms=names, out=out,
        order=order, max_new_tokens=sizes.tokens, batch=BATCH, check_every=0, seed=bench.seed + seed,
    )  # fmt: skip
    if result.interrupted:
        raise KeyboardInterrupt
    lines = (out / "arms.jsonl").read_text("utf-8").splitlines()
    found = [TypeAdapter(ArmResult).validate_json(line) for line in lines]
    return {arm.arm: arm for arm in found}


def alpha(some: Sequence[RoutedRequest], *, frozen: bool = False) -> PaperFigure:
    """Return followed acceptance over requests."""
    hits = [float(one.frozen_hits if frozen else one.hits) for one in some]
    return ratio_of_sums(hits, [one.emitted for one in some])


def data_mix(bench: PapersBench, sizes: PaperSizes) -> PaperFindings:
    """OSD, Figure 9: two domains are served mixed; one draft learns from the first alone, then from the second alone.
    Acceptance of each domain's last third of a half, and of its first third of the first; errors over requests."""
    first, second = (segment.name for segment in drawn(bench, sizes, 1, 0)[:2])
    parts: dict[tuple[str, str], list[RoutedRequest]] = {}
    for seed in range(sizes.seeds):
        seen = arms(bench, sizes, "apart", ("single",), seed)["single"].seen
        for half, some in (("first", seen[: len(seen) // 2]), ("second", seen[len(seen) // 2 :])):
            for name in (first, second):
                mine = [one for one in some if one.domain == name]
                third = max(1, len(mine) // 3)
                parts.setdefault((name, f"begin of the {half} half"), []).extend(mine[:third])
                parts.setdefault((name, f"end of the {half} half"), []).extend(mine[-third:])
    found = {key: alpha(some) for key, some in parts.items()}
    half, end = "end of the first half", "end of the second half"
    figures = {
        "forgotten": _apart(found[first, half], found[first, end]),
        "first_rises": _apart(found[first, half], found[first, "begin of the first half"]),
        "second_rises": _apart(found[second, end], found[second, half]),
    }  # fmt: skip
    rows = [{"domain": name, **{when: str(each) for (n, when), each in found.items() if n == name}}
            for name in (first, second)]  # fmt: skip
    return PaperFindings(figures, {f"α, learned from {first}, then from {second}": rows})


def shifts(bench: PapersBench, sizes: PaperSizes) -> PaperFindings:
    """OSD, Figure 11: acceptance right before and right after the middle of the stream, abrupt and gradual,
    where the second set's share rises in a straight line."""
    dips: dict[str, list[float]] = {"abrupt": [], "linear": []}
    rows, curves = [], []
    for seed, order in ((seed, order) for seed in range(sizes.seeds) for order in dips):
        seen = arms(bench, sizes, order, ("single",), seed)["single"].seen
        half, near = len(seen) // 2, max(1, len(seen) // 8)
        before, after = alpha(seen[half - near : half]), alpha(seen[half : half + near])
        dips[order].append(before.value - after.value)
        rows.append({"seed": seed, "change": order, "before": str(before), "after": str(after)})
        if not seed:
            wide = [(float(i), alpha(seen[max(0, i - near) : i]).value) for i in range(1, len(seen) + 1)]
            curves.append(Curve(order, wide))
    difference = [one - other for one, other in zip(dips["abrupt"], dips["linear"], strict=True)]
    figures = {"abrupt_dip": mean_of(dips["abrupt"]), "abrupt_minus_gradual_dip": mean_of(difference)}
    return PaperFindings(figures, {"α around the change": rows}, {"shift": Picture("requests", "α", curves)})


SMALL, FULL = PaperSizes(16, 24, 2, minutes=3), PaperSizes(240, 64, 3, minutes=8)
DATA_MIX = PaperExperiment(data_mix, SMALL, FULL)
SHIFTS = PaperExperiment(shifts, SMALL, replace(FULL, minutes=22))
