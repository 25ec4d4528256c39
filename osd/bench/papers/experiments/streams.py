"""Learning while serving: `osd bench online` and `osd bench routes`, with errors over requests and seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter

from osd.bench.harness.report import save_json
from osd.bench.papers.claims import PaperFigure, difference_of_shares, mean_of, ratio_of_sums
from osd.bench.papers.entry import Curve, PaperExperiment, PaperFindings, PapersBench, PaperSizes, Picture
from osd.bench.routes.bench import TEACHING
from osd.bench.routes.result import ArmResult, RoutedRequest
from osd.bench.routes.traffic import BY_LANGUAGE, languages_of
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
    """Return the arms of a run of `osd bench routes`, which goes on in the shared folder."""
    name = f"routes-{order}-{sizes.texts}x{sizes.tokens}-s{seed}"
    made: dict[str, ArmResult] = bench.once(name, lambda: _arms(bench, sizes, order, names, seed, bench.folder(name)))
    return made


def _arms(
    bench: PapersBench, sizes: PaperSizes, order: str, names: Sequence[str], seed: int, out: Path
) -> dict[str, ArmResult]:
    from osd.bench.routes.bench import bench_routes

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


def _late(arm: ArmResult, domain: str) -> list[RoutedRequest]:
    return _last_third(arm.of(domain))


def _last_third(mine: Sequence[RoutedRequest]) -> list[RoutedRequest]:
    """Return the last third in the order of the traffic: the same requests in every arm."""
    return sorted(mine, key=lambda one: one.number)[-max(1, len(mine) // 3) :]


def _paired(own: Sequence[RoutedRequest], other: Sequence[RoutedRequest]) -> PaperFigure:
    """Return the difference of two arms' acceptance on the same requests, whose texts are the target's in both."""
    theirs = {one.number: one for one in other}
    pairs = [(one, theirs[one.number]) for one in own if one.number in theirs]
    return difference_of_shares([a.hits for a, _ in pairs], [b.hits for _, b in pairs], [a.emitted for a, _ in pairs])


def routed(bench: PapersBench, sizes: PaperSizes) -> PaperFindings:
    """OSD, Figures 5 and 6: a draft for each domain against one for all and the frozen one, last third of each; and one
    for each language, where the prompts are of several."""
    teaching = {segment.name: segment.prompts[-TEACHING:] for segment in drawn(bench, sizes, sizes.texts + TEACHING, 0)}
    languages = languages_of(teaching)
    several = (BY_LANGUAGE,) if len(set(languages.values())) > 1 else ()
    found = arms(bench, sizes, "mixed", ("single", "routed", *several))
    domains = list(dict.fromkeys(one.domain for one in found["single"].seen))
    gains, over, rows = {}, {}, []
    for name in domains:
        own, one = _late(found["routed"], name), _late(found["single"], name)
        gains[name] = difference_of_shares(
            [r.hits for r in own], [r.frozen_hits for r in own], [r.emitted for r in own]
        )
        over[name] = _paired(own, one)
        rows.append({"domain": name, "frozen": str(alpha(own, frozen=True)), "one draft": str(alpha(one)),
                     "a draft for each": str(alpha(own)), "gain of routes": str(over[name])})  # fmt: skip
    mean = float(np.mean([each.value for each in over.values()]))
    error = float(np.sqrt(sum((each.error or 0) ** 2 for each in over.values()))) / len(over)
    counts = [each.count or 0 for each in over.values()]
    alphas = [alpha(_late(found["routed"], name)) for name in domains]
    figures = {
        "least_gain_of_learning": min(gains.values(), key=lambda each: each.value),
        "least_alpha": min(alphas, key=lambda each: each.value),
        "gain_of_routes": PaperFigure(mean, error, min(counts)),
        "least_gain_of_routes": min(over.values(), key=lambda each: each.value),
    }  # fmt: skip
    tables = {"Acceptance by domain, last third": rows}
    if several:
        told, tables["Acceptance by language, last third"] = by_language(found, languages)
        figures |= told
    return PaperFindings(figures, tables)


def by_language(
    found: Mapping[str, ArmResult], languages: Mapping[str, str]
) -> tuple[dict[str, PaperFigure], list[dict[str, str]]]:
    """Return figures and a table of a draft for each language, against one for all and the frozen one. ``languages``:
    by domain."""
    gains, over, rows = [], [], []
    for language in dict.fromkeys(languages.values()):
        own, one = (_late_in(found[arm], language, languages) for arm in (BY_LANGUAGE, "single"))
        gains.append(
            difference_of_shares([r.hits for r in own], [r.frozen_hits for r in own], [r.emitted for r in own])
        )
        over.append(_paired(own, one))
        rows.append({"language": language, "frozen": str(alpha(own, frozen=True)), "one draft": str(alpha(one)),
                     "a draft for each": str(alpha(own)), "gain of routes": str(over[-1])})  # fmt: skip
    figures = {
        "least_gain_of_learning_by_language": min(gains, key=lambda each: each.value),
        "least_gain_of_language_routes": min(over, key=lambda each: each.value),
    }  # fmt: skip
    return figures, rows


def _late_in(arm: ArmResult, language: str, languages: Mapping[str, str]) -> list[RoutedRequest]:
    return _last_third([one for one in arm.seen if languages.get(one.domain) == language])


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
ROUTED = PaperExperiment(routed, PaperSizes(16, 24, minutes=3), PaperSizes(240, 64, minutes=19))
DATA_MIX = PaperExperiment(data_mix, SMALL, FULL)
SHIFTS = PaperExperiment(shifts, SMALL, replace(FULL, minutes=22))
