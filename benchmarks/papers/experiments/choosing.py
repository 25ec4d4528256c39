"""On-the-fly adaptation's Tables 2 and 13 and Theorem 3: a draft for each prompt, chosen by what is expected of it.

The router's own regression (router/draft_predictor.py) learns both drafts' acceptance from some prompts of each data
set, then names a draft for each of the others.
"""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from benchmarks.papers.claims import PaperFigure, mean_of, ratio_of_sums
from benchmarks.papers.entry import PaperExperiment, PaperFindings, PapersBench, PaperSizes
from benchmarks.papers.experiments.gamma_rules import FULL, SMALL, WINDOWS
from benchmarks.papers.experiments.replays import Floats, best_on_other_half, fixed
from benchmarks.papers.experiments.two_drafts import (
    LARGE_DRAFT,
    SMALL_DRAFT,
    Drafts,
    learned_first,
    two_drafts,
)
from router.draft_predictor import DraftPredictors, Expect, PendingRequest
from router.throughput import larger_pays

DIMENSIONS = (4, 8, 10, 12, 16)
"""r in Table 13."""
Mask = npt.NDArray[np.bool_]


def measured(drafts: Drafts) -> Mask:
    """Return the texts that count, (n,): those that nothing was learned from."""
    return ~learned_first(drafts[SMALL_DRAFT].found.data_sets)


def takes_larger(drafts: Drafts, dimensions: int, expect: Expect) -> Mask:
    """Return for each text that counts whether the router names the larger draft."""
    costs = {name: draft.costs for name, draft in drafts.items()}
    predictors = DraftPredictors(costs.get, dimensions, expect, threading.Lock())
    picks, counts = [], measured(drafts)
    for number in np.argsort(counts, kind="stable").tolist():
        text = drafts[SMALL_DRAFT].texts.texts[number]
        pending = PendingRequest(text.prompt.tolist(), True, None, "default", tuple(drafts))
        predictors.estimates(pending)
        if counts[number]:
            picks.append(pending.followed == LARGE_DRAFT)
        else:
            predictors.add_scores(pending, {name: draft.score(number) for name, draft in drafts.items()}, costs)
    return np.array(picks)


def with_choice(drafts: Drafts, larger: Mask) -> Floats:
    """Return milliseconds of each text that counts, with the draft that was named."""
    small, large = (drafts[name].found.ms[measured(drafts)] for name in (SMALL_DRAFT, LARGE_DRAFT))
    return np.where(larger, large, small)


class Fixed:
    """Texts with one draft for all."""

    def __init__(self, ms: Floats) -> None:
        self.ms = ms


def best_of_set(drafts: Drafts) -> Floats:
    """Return milliseconds of each text that counts under the draft that is faster on the other half of its data set."""
    counts = measured(drafts)
    names = np.array(drafts[SMALL_DRAFT].found.data_sets)[counts]
    found = np.zeros(len(names))
    for name in dict.fromkeys(names.tolist()):
        mine = names == name
        found[mine] = best_on_other_half({d: Fixed(draft.found.ms[counts][mine]) for d, draft in drafts.items()})
    return found


def selection(bench: PapersBench, sizes: PaperSizes) -> PaperFindings:
    """Table 2: speed with a draft chosen for each prompt, against one for each data set and against the original
    method; beside it what an oracle's choice would bring, and Theorem 3's."""
    drafts = two_drafts(bench, sizes)
    small, counts = drafts[SMALL_DRAFT], measured(drafts)
    ways = {
        "small draft": small.found.ms[counts], "large draft": drafts[LARGE_DRAFT].found.ms[counts],
        "better draft of each data set": best_of_set(drafts),
        "chosen by Eq. 3": with_choice(drafts, takes_larger(drafts, 16, "pace")),
        "chosen by Theorem 3": with_choice(drafts, takes_larger(drafts, 16, "theorem")),
        "chosen by gain": with_choice(drafts, takes_larger(drafts, 16, "gain")),
    }  # fmt: skip
    ways["better draft of each prompt"] = np.minimum(ways["small draft"], ways["large draft"])
    windows = np.mean([small.texts.under(fixed(bench, gamma)).ms[counts] for gamma in WINDOWS], axis=0)
    own, single = ways["chosen by Eq. 3"], ways["better draft of each data set"]
    figures = {
        "chosen_vs_original": ratio_of_sums(windows, own), "chosen_vs_one_draft": ratio_of_sums(single, own),
        "chosen_vs_small": ratio_of_sums(ways["small draft"], own),
        "theorem_3_vs_one_draft": ratio_of_sums(single, ways["chosen by Theorem 3"]),
    }  # fmt: skip
    names = np.array(small.found.data_sets)[counts]
    rows = [
        {"": way, "÷ windows of 5 to 8": str(ratio_of_sums(windows, ms))}
        | {n: float(windows[names == n].sum() / ms[names == n].sum()) for n in dict.fromkeys(names.tolist())}
        for way, ms in ways.items()
    ]
    return PaperFindings(figures, {f"Speed, costs of {small.texts.table.name}": rows})


def dimensions(bench: PapersBench, sizes: PaperSizes) -> PaperFindings:
    """Table 13: tokens a second with the draft that a regression over r features names."""
    drafts = two_drafts(bench, sizes)
    tokens = float(drafts[SMALL_DRAFT].found.tokens[measured(drafts)].sum())
    picks = {r: takes_larger(drafts, r, "pace") for r in DIMENSIONS}
    ms = {r: with_choice(drafts, larger) for r, larger in picks.items()}
    against = [ratio_of_sums(ms[16], ms[r]) for r in DIMENSIONS[:-1]]
    rows = [
        {"r": r, "tokens a second": 1e3 * tokens / float(ms[r].sum()), "larger draft": float(np.mean(picks[r]))}
        for r in ms
    ]
    figures = {"r_farthest_from_16": max(against, key=lambda figure: abs(figure.value - 1))}
    return PaperFindings(figures, {"By r": rows})


def larger(bench: PapersBench, sizes: PaperSizes) -> PaperFindings:
    """Theorem 3 on each text: does its condition, as printed and as Eq. 3 gives it, say which draft was faster?"""
    drafts = two_drafts(bench, sizes)
    small, large = drafts[SMALL_DRAFT], drafts[LARGE_DRAFT]
    holds, right, faster = [], [], []
    for number, text in enumerate(small.texts.texts):
        drafted = [float(each.found.drafted[number]) for each in (small, large)]
        if not all(drafted):
            continue  # ρ is of what was drafted
        length = float(text.length)
        rounds = float(small.found.rounds[number]), float(large.found.rounds[number])
        rho = length / drafted[0], length / drafted[1]
        c = small.costs.draft_ms / small.costs.verify_ms[0], large.costs.draft_ms / large.costs.verify_ms[0]
        wins = bool(large.found.ms[number] < small.found.ms[number])
        faster.append(wins)
        right.append(larger_pays(length, rounds=rounds, rho=rho, c=c) == wins)
        if rho[1] > rho[0]:  # as the theorem has it: the larger draft's acceptance rate is higher
            holds += [(rounds[0] - rounds[1] > (c[1] - c[0]) / (rho[1] - rho[0]) * length, wins)]
    figures = {
        name: figure for name, some in (
            ("as_derived_right", right), ("as_printed_sufficient", [won for printed, won in holds if printed]),
            ("as_printed_right", [printed == won for printed, won in holds]),
        ) if (figure := _share(some))
    }  # fmt: skip
    rows = [{
        "texts": len(right), "larger draft faster": sum(faster) / max(1, len(faster)), "ρ higher with it": len(holds),
        "condition holds as printed": sum(printed for printed, _ in holds),
    }]  # fmt: skip
    return PaperFindings(figures, {f"Texts, costs of {small.texts.table.name}": rows})


def _share(some: list[bool]) -> PaperFigure | None:
    return mean_of([float(each) for each in some]) if some else None


SIZES = (replace(SMALL, minutes=1), replace(FULL, minutes=4))
SELECTION, R, LARGER = (PaperExperiment(run, *SIZES, "two drafts") for run in (selection, dimensions, larger))
