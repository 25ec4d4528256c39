"""A draft for each domain or language against one for all, by `routes`: arms that serve the same requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.papers.claims import PaperFigure, difference_of_shares
from benchmarks.papers.entry import PaperExperiment, PaperFindings, PapersBench, PaperSizes
from benchmarks.papers.experiments.streams import alpha, arms, drawn
from benchmarks.routes.bench import TEACHING
from benchmarks.routes.result import ArmResult, RoutedRequest
from benchmarks.routes.traffic import BY_LANGUAGE, languages_of


@dataclass(frozen=True, slots=True)
class ComparedArms:
    """Two arms' last thirds, group by group: of a domain, or of the domains of one language."""

    gains: list[PaperFigure]
    """Acceptance of the first arm less that of the frozen draft, on the same texts."""
    over: list[PaperFigure]
    """Acceptance of the first arm less that of a single draft, on the same texts."""
    alphas: list[PaperFigure]
    rows: list[dict[str, str]]


def compared(found: Mapping[str, ArmResult], arm: str, groups: Mapping[str, str], told: str) -> ComparedArms:
    """Compare an arm with a single draft and with the frozen one. ``groups``: by domain; ``told``: what they are."""
    made = ComparedArms([], [], [], [])
    for group in dict.fromkeys(groups.values()):
        own, one = (_last_third(found[name], group, groups) for name in (arm, "single"))
        frozen = [r.frozen_hits for r in own]
        made.gains.append(difference_of_shares([r.hits for r in own], frozen, [r.emitted for r in own]))
        made.over.append(_paired(own, one))
        made.alphas.append(alpha(own))
        made.rows.append({told: group, "frozen": str(alpha(own, frozen=True)), "one draft": str(alpha(one)),
                          "a draft for each": str(made.alphas[-1]), "gain of routes": str(made.over[-1])})  # fmt: skip
    return made


def _last_third(arm: ArmResult, group: str, groups: Mapping[str, str]) -> list[RoutedRequest]:
    """Return the last third of a group's requests in the order of the traffic: the same ones in every arm."""
    mine = sorted((one for one in arm.seen if groups.get(one.domain) == group), key=lambda one: one.number)
    return mine[-max(1, len(mine) // 3) :]


def _paired(own: Sequence[RoutedRequest], other: Sequence[RoutedRequest]) -> PaperFigure:
    """Return the difference of two arms' acceptance on the same requests, whose texts are the target's in both."""
    theirs = {one.number: one for one in other}
    pairs = [(one, theirs[one.number]) for one in own if one.number in theirs]
    return difference_of_shares([a.hits for a, _ in pairs], [b.hits for _, b in pairs], [a.emitted for a, _ in pairs])


def _least(figures: Sequence[PaperFigure]) -> PaperFigure:
    return min(figures, key=lambda each: each.value)


def _mean(figures: Sequence[PaperFigure]) -> PaperFigure:
    """Return the mean of figures of different requests."""
    value = float(np.mean([each.value for each in figures]))
    error = float(np.sqrt(sum((each.error or 0) ** 2 for each in figures))) / len(figures)
    return PaperFigure(value, error, min(each.count or 0 for each in figures))


def routed(bench: PapersBench, sizes: PaperSizes) -> PaperFindings:
    """OSD, Figures 5 and 6: a draft for each domain against one for all and the frozen one, last third of each; and one
    for each language, where the prompts are of several."""
    teaching = {segment.name: segment.prompts[-TEACHING:] for segment in drawn(bench, sizes, sizes.texts + TEACHING, 0)}
    languages = languages_of(teaching)
    several = (BY_LANGUAGE,) if len(set(languages.values())) > 1 else ()
    found = arms(bench, sizes, "mixed", ("single", "routed", *several))
    domains = {one.domain: one.domain for one in found["single"].seen}
    each = compared(found, "routed", domains, "domain")
    figures = {
        "least_gain_of_learning": _least(each.gains), "least_alpha": _least(each.alphas),
        "gain_of_routes": _mean(each.over), "least_gain_of_routes": _least(each.over),
    }  # fmt: skip
    tables = {"Acceptance by domain, last third": each.rows}
    if several:
        told, tables["Acceptance by language, last third"] = by_language(found, languages)
        figures |= told
    return PaperFindings(figures, tables)


def by_language(
    found: Mapping[str, ArmResult], languages: Mapping[str, str]
) -> tuple[dict[str, PaperFigure], list[dict[str, str]]]:
    """Return figures and a table of a draft for each language, against one for all and the frozen one. ``languages``:
    by domain."""
    each = compared(found, BY_LANGUAGE, languages, "language")
    figures = {
        "least_gain_of_learning_by_language": _least(each.gains), "least_gain_of_language_routes": _least(each.over)
    }  # fmt: skip
    return figures, each.rows


ROUTED = PaperExperiment(routed, PaperSizes(16, 24, minutes=3), PaperSizes(240, 64, minutes=19))
