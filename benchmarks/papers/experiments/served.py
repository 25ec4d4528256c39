"""Learning while serving, with errors over requests and seeds: `python -m benchmarks routes` for OSD's Figures 5, 6, 9
and 11."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from benchmarks.figures import PaperFigure, difference_of_shares, least, mean_of, ratio_of_sums
from benchmarks.papers.experiment import Curve, PaperExperiment, PaperFindings, PapersBench, Picture, Rows
from benchmarks.routes.bench import TEACHING, RoutesPlan, serve_arms
from benchmarks.routes.result import ArmResult, RoutedRequest
from benchmarks.routes.traffic import BY_LANGUAGE, languages_of
from osd.bench.online import RECIPES
from osd.demo.runner.source import Segment, segments_of

BATCH = 8


class LearningRecipe(NamedTuple):
    """Settings by which a draft learns while it serves."""

    told: str
    suffix: str
    """What names of its runs and figures end with."""
    settings: Mapping[str, Mapping[str, Any]]


OURS = LearningRecipe("newest replayed", "", {"learn": {"replay": "newest"}})
RESERVOIR = LearningRecipe("reservoir replayed", "_reservoir", {"learn": {"replay": "reservoir"}})
PRINTED = LearningRecipe("Algorithm 1 as printed", "_as_printed", RECIPES["paper"])
LEARNING_RECIPES = (OURS, RESERVOIR, PRINTED)
BY_NAME = dict(zip(("newest", "reservoir", "printed"), LEARNING_RECIPES, strict=True))
Arms = Mapping[str, ArmResult]
HALF, END = "end of the first half", "end of the second half"
Parts = dict[tuple[str, str], Sequence[RoutedRequest]]
"""Requests by domain, and by the third of a half in which they were served."""
Request = TypeVar("Request")


def drawn(bench: PapersBench, plan: PaperExperiment, requests: int, seed: int = 0) -> list[Segment]:
    """Return a segment for each data set."""
    found, problems = segments_of(
        [Path(name) for name in bench.prompts], requests, bench.seed + seed, target=bench.target,
        max_length=bench.settings.serve.max_length, max_new_tokens=plan.tokens,
    )  # fmt: skip
    for problem in problems:
        bench.watch.say(problem)
    return found


def apart(one: PaperFigure, other: PaperFigure) -> PaperFigure:
    """Return the difference of figures of different requests."""
    known = one.error is not None and other.error is not None
    error = float(np.hypot(one.error or 0, other.error or 0)) if known else None
    counts = [each.count for each in (one, other) if each.count is not None]
    return PaperFigure(one.value - other.value, error, min(counts, default=None))


def last_third(some: Sequence[Request]) -> Sequence[Request]:
    """Return the last third of requests, one at least."""
    return some[-max(1, len(some) // 3) :]


def alpha(some: Sequence[RoutedRequest], *, frozen: bool = False) -> PaperFigure:
    """Return followed acceptance over requests."""
    hits = [one.frozen_hits if frozen else one.hits for one in some]
    return ratio_of_sums(hits, [one.emitted for one in some])


class RoutesExperiment(PaperExperiment):
    """An experiment by `python -m benchmarks routes`."""

    def arms(
        self, bench: PapersBench, order: str, names: Sequence[str], seed: int = 0, recipe: LearningRecipe = OURS
    ) -> Arms:
        """Return the arms of a run, which goes on in the shared folder."""
        name = f"{self.named(f'routes-{order}')}{recipe.suffix}-s{seed}"
        ours = replace(bench, settings=bench.settings.changed(**recipe.settings))
        return bench.once(name, lambda: self._arms(ours, order, names, seed, bench.folder(name)))

    def _arms(self, bench: PapersBench, order: str, names: Sequence[str], seed: int, out: Path) -> Arms:
        segments = drawn(bench, self, self.texts + TEACHING, seed)[: None if order == "mixed" else 2]
        plan = RoutesPlan(
            target=bench.target, draft=bench.draft, max_tokens=self.tokens, batch=BATCH, out=out,
            arms=tuple(names),  # type: ignore[arg-type]
            order=order,  # type: ignore[arg-type]
            seed=bench.seed + seed,
        )  # fmt: skip
        return serve_arms(plan, bench.settings, segments, bench.watch, check_every=0)[1]


class Routed(RoutesExperiment):
    """OSD, Figures 5 and 6: a draft for each domain against one for all and the frozen one, last third of each; and one
    for each language, where the prompts are of several."""

    def run(self, bench: PapersBench) -> PaperFindings:
        """Serve mixed traffic with every arm."""
        segments = drawn(bench, self, self.texts + TEACHING)
        languages = languages_of({segment.name: segment.prompts[-TEACHING:] for segment in segments})
        several = (BY_LANGUAGE,) if len(set(languages.values())) > 1 else ()
        found = self.arms(bench, "mixed", ("single", "routed", *several))
        domains = {one.domain: one.domain for one in found["single"].seen}
        each = compared(found, "routed", domains, "domain")
        figures = {
            "least_gain_of_learning": least(each.gains), "least_alpha": least(each.alphas),
            "gain_of_routes": _mean(each.over), "least_gain_of_routes": least(each.over),
        }  # fmt: skip
        tables = {"Acceptance by domain, last third": each.rows}
        for recipe in (RESERVOIR, PRINTED):
            each = compared(self.arms(bench, "mixed", ("single", "routed"), recipe=recipe), "routed", domains, "domain")
            figures[f"least_gain_of_learning{recipe.suffix}"] = least(each.gains)
            figures[f"gain_of_routes{recipe.suffix}"] = _mean(each.over)
            tables[f"Acceptance by domain, last third, {recipe.told}"] = each.rows
        if several:
            each = compared(found, BY_LANGUAGE, languages, "language")
            figures["least_gain_of_learning_by_language"] = least(each.gains)
            figures["least_gain_of_language_routes"] = least(each.over)
            tables["Acceptance by language, last third"] = each.rows
        return PaperFindings(figures, tables)


@dataclass(frozen=True, slots=True)
class ComparedArms:
    """Two arms' last thirds, group by group: of a domain, or of the domains of one language."""

    gains: list[PaperFigure] = field(default_factory=list)
    """Acceptance of the first arm less that of the frozen draft, on the same texts."""
    over: list[PaperFigure] = field(default_factory=list)
    """Acceptance of the first arm less that of a single draft, on the same texts."""
    alphas: list[PaperFigure] = field(default_factory=list)
    rows: list[dict[str, str]] = field(default_factory=list)


def compared(found: Arms, arm: str, groups: Mapping[str, str], told: str) -> ComparedArms:
    """Compare an arm with a single draft and with the frozen one. ``groups``: by domain; ``told``: what they are."""
    made = ComparedArms()
    for group in dict.fromkeys(groups.values()):
        own, one = (_last_of(found[name], group, groups) for name in (arm, "single"))
        frozen = [r.frozen_hits for r in own]
        made.gains.append(difference_of_shares([r.hits for r in own], frozen, [r.emitted for r in own]))
        made.over.append(_paired(own, one))
        made.alphas.append(alpha(own))
        made.rows.append({told: group, "frozen": str(alpha(own, frozen=True)), "one draft": str(alpha(one)),
                          "a draft for each": str(made.alphas[-1]), "gain of routes": str(made.over[-1])})  # fmt: skip
    return made


def _last_of(arm: ArmResult, group: str, groups: Mapping[str, str]) -> Sequence[RoutedRequest]:
    """Return the last third of a group's requests in the order of the traffic: the same ones in every arm."""
    mine = (one for one in arm.seen if groups.get(one.domain) == group)
    return last_third(sorted(mine, key=lambda one: one.number))


def _paired(own: Sequence[RoutedRequest], other: Sequence[RoutedRequest]) -> PaperFigure:
    """Return the difference of two arms' acceptance on the same requests, whose texts are the target's in both."""
    theirs = {one.number: one for one in other}
    pairs = [(one, theirs[one.number]) for one in own if one.number in theirs]
    return difference_of_shares([a.hits for a, _ in pairs], [b.hits for _, b in pairs], [a.emitted for a, _ in pairs])


def _mean(figures: Sequence[PaperFigure]) -> PaperFigure:
    """Return the mean of figures of different requests."""
    value = float(np.mean([each.value for each in figures]))
    error = float(np.sqrt(sum((each.error or 0) ** 2 for each in figures))) / len(figures)
    return PaperFigure(value, error, min(each.count or 0 for each in figures))


def between(parts: Parts, name: str, one: str, other: str) -> PaperFigure:
    """Return a domain's acceptance in one part less that in another."""
    return apart(alpha(parts[name, one]), alpha(parts[name, other]))


class DataMix(RoutesExperiment):
    """OSD, Figure 9: two domains are served mixed; one draft learns from the first alone, then from the second alone,
    by each recipe. Acceptance of each domain's last third of a half, and of its first third of the first."""

    def run(self, bench: PapersBench) -> PaperFindings:
        """Serve the mix with every seed by every recipe."""
        names = [segment.name for segment in drawn(bench, self, 1)[:2]]
        recipes = [BY_NAME[name] for name in self.recipes]
        runs = [(recipe, self._parts(bench, seed, recipe, names)) for seed in range(self.seeds) for recipe in recipes]
        by_recipe = {recipe.suffix: [parts for own, parts in runs if own is recipe] for recipe in recipes}
        first, second = names
        figures, tables = dict[str, PaperFigure](), dict[str, Rows]()
        for recipe in recipes:
            found, key = by_recipe[recipe.suffix], recipe.suffix
            some: Parts = {part: [one for parts in found for one in parts[part]] for part in found[0]}
            figures |= {
                f"forgotten{key}": between(some, first, HALF, END),
                f"first_rises{key}": between(some, first, HALF, "begin of the first half"),
                f"second_rises{key}": between(some, second, END, HALF),
                f"forgotten{key}_by_seed": mean_of([between(parts, first, HALF, END).value for parts in found]),
            }
            told = {part: str(alpha(mine)) for part, mine in some.items()}
            tables[f"α, {recipe.told}: learned from {first}, then from {second}"] = [
                {"domain": name, **{when: told[name, when] for n, when in told if n == name}} for name in names
            ]
        both = {"newest", "reservoir"} <= set(self.recipes)
        return PaperFindings(figures | (self._reservoir(by_recipe, names) if both else {}), tables)

    def _parts(self, bench: PapersBench, seed: int, recipe: LearningRecipe, names: Sequence[str]) -> Parts:
        """Return the requests of a run by domain and third."""
        seen = self.arms(bench, "apart", ("single",), seed, recipe)["single"].seen
        parts: Parts = {}
        for half, some in (("first", seen[: len(seen) // 2]), ("second", seen[len(seen) // 2 :])):
            for name in names:
                mine = [one for one in some if one.domain == name]
                third = max(1, len(mine) // 3)
                parts[name, f"begin of the {half} half"] = mine[:third]
                parts[name, f"end of the {half} half"] = mine[-third:]
        return parts

    def _reservoir(self, by_recipe: Mapping[str, Sequence[Parts]], names: Sequence[str]) -> dict[str, PaperFigure]:
        """Return what the reservoir changes of α at the end, of both sets, on the same requests, with errors over
        seeds, of one seed over requests; and by seed the share of what is forgotten that it keeps."""
        ours, theirs = by_recipe[OURS.suffix], by_recipe[RESERVOIR.suffix]
        found = {}
        for key, name in zip(("first", "second"), names, strict=True):
            pairs = [_paired(one[name, END], other[name, END]) for one, other in zip(theirs, ours, strict=True)]
            mean = pairs[0] if len(pairs) == 1 else mean_of([each.value for each in pairs])
            found[f"reservoir_minus_newest_on_{key}"] = mean
        forgotten = [[between(parts, names[0], HALF, END).value for parts in some] for some in (ours, theirs)]
        if sum(forgotten[0]) > 0:
            found["reservoir_keeps"] = ratio_of_sums(np.subtract(forgotten[0], forgotten[1]), forgotten[0])
        return found


class Shifts(RoutesExperiment):
    """OSD, Figure 11: acceptance right before and right after the middle of the stream, abrupt and gradual, where the
    second set's share rises in a straight line."""

    def run(self, bench: PapersBench) -> PaperFindings:
        """Serve both orders with every seed, by each recipe."""
        figures, tables, curves = dict[str, PaperFigure](), dict[str, Rows](), list[Curve]()
        for recipe in LEARNING_RECIPES:
            own, rows, drawn_curves = self._shifted(bench, recipe)
            figures |= {f"{name}{recipe.suffix}": figure for name, figure in own.items()}
            tables[f"α around the change, {recipe.told}"], curves = rows, [*curves, *drawn_curves]
        return PaperFindings(figures, tables, {"shift": Picture("requests", "α", curves)})

    def _shifted(self, bench: PapersBench, recipe: LearningRecipe) -> tuple[dict[str, PaperFigure], Rows, list[Curve]]:
        dips: dict[str, list[float]] = {"abrupt": [], "linear": []}
        rows, curves = [], []
        for seed, order in ((seed, order) for seed in range(self.seeds) for order in dips):
            seen = self.arms(bench, order, ("single",), seed, recipe)["single"].seen
            half, near = len(seen) // 2, max(1, len(seen) // 8)
            before, after = alpha(seen[half - near : half]), alpha(seen[half : half + near])
            dips[order].append(before.value - after.value)
            rows.append({"seed": seed, "change": order, "before": str(before), "after": str(after)})
            if not seed:
                wide = [(float(i), alpha(seen[max(0, i - near) : i]).value) for i in range(1, len(seen) + 1)]
                curves.append(Curve(f"{order}, {recipe.told}", wide))
        figures = {
            "abrupt_dip": mean_of(dips["abrupt"]),
            "abrupt_minus_gradual_dip": mean_of(np.subtract(dips["abrupt"], dips["linear"])),
        }
        return figures, rows, curves
