"""The gate: a candidate is published only if it is proven better than the version that serves.

Both are scored at the same positions of the same requests, with the acceptance rule of the engine. Positions of
one request depend on each other, so requests are the unit of chance: the difference is a ratio of sums over
requests, its standard error is clustered by request, and its lower limit uses Student's t with n − 1 degrees.

A request judges before it is trained on: one that was just claimed is scored by the candidate that the last run left,
which has not seen it. This run's candidate is that one trained further, so this measures the gain of the line
of training, each request scored once and unseen (progressive validation). Held-out requests and those that came
meanwhile are scored by the candidate itself.

Only the target's top k and the mass outside are known. The two bounds of Σ min(p, q) are: nothing outside
overlaps, or min(p_out, q_out) does. Both models are scored at the lower bound. A candidate that gathers its
mass outside the target's likeliest tokens gains nothing by it; ``unknown`` in the evidence is the width.

Drafts are scored in the arithmetic that serves (:func:`as_served`), which on a GPU has fewer bits than training.

When only rejected positions were stored, they were selected by the current draft's mistakes, and any other draft
looks better there. Then the measure is how often the draft's first choice is the emitted token,
over the whole output, which needs no distribution and is not selected.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.special import stdtrit
from torch import nn

from storage.records import RequestSamples, TokenKind
from storage.settings import GateSettings
from trainer.distil.scores import Array, DraftScores, Measure, joined, score
from trainer.distil.teacher import Lessons


@dataclass(frozen=True, slots=True)
class PairedScores:
    """The scores of two drafts on the same requests."""

    measure: Measure
    before: DraftScores
    after: DraftScores


@dataclass(frozen=True, slots=True)
class Comparison:
    """A paired difference of means over positions, clustered by request."""

    requests: int
    positions: int
    before: float
    after: float
    difference: float
    standard_error: float
    lower: float
    """One-sided lower limit of the difference at ``confidence``; −∞ with fewer than two requests."""
    confidence: float


@dataclass(frozen=True, slots=True)
class GateDecision:
    """The gate's decision and its evidence."""

    better: bool
    """Whether the candidate may be published."""
    worse: bool
    """Worse by more than a standard error: training does not continue from it. Neither means too close to call."""
    evidence: dict[str, Any]


def as_served(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Return the model as servers compute it, in ``dtype``: what training moved by less than that can hold is lost
    there, and must not pass for a gain."""
    return model if dtype is torch.float32 else copy.deepcopy(model).to(dtype)


def compare(positions: Array, before: Array, after: Array, confidence: float) -> Comparison:
    """Return the difference of Σ after / Σ positions and Σ before / Σ positions, from (n,) sums by request.

    A ratio estimator: with residuals e_r = (after_r − before_r) − D · positions_r, its variance is
    n / (n − 1) · Σ e_r² / (Σ positions)².
    """
    n, total = len(positions), float(positions.sum())
    if not total:
        return Comparison(n, 0, 0.0, 0.0, 0.0, float("inf"), -float("inf"), confidence)
    means = float(before.sum()) / total, float(after.sum()) / total
    difference = float((after - before).sum()) / total
    error, lower = float("inf"), -float("inf")
    if n > 1:
        residuals = (after - before) - difference * positions
        error = float(np.sqrt(n / (n - 1) * (residuals**2).sum())) / total
        lower = difference - float(stdtrit(n - 1, confidence)) * error
    return Comparison(n, int(total), *means, difference, error, lower, confidence)


def score_both(
    current: nn.Module,
    other: nn.Module,
    judges: Iterable[RequestSamples],
    between: Callable[[], None] = lambda: None,
    lessons: Lessons | None = None,
) -> PairedScores | None:
    """Score both drafts on requests that neither was trained on; None when they have no positions."""
    measure, judges = comparable(judges, lessons)
    if not judges:
        return None
    return PairedScores(measure, *(score(each, judges, between, lessons) for each in (current, other)))


def judge(scores: Sequence[PairedScores | None], gate: GateSettings) -> GateDecision:
    """Return whether acceptance is higher by at least ``min_gain``, with the required confidence.

    The scores are pooled. Where some can only be measured by agreement, that is the measure of all, and what
    was measured over selected positions is left out.
    """
    given = [each for each in scores if each is not None]
    measure: Measure = "agreement" if any(h.measure == "agreement" for h in given) else "expected_acceptance"
    given = [each for each in given if each.measure == measure]
    if not given:
        return GateDecision(False, False, {"reason": "nothing to judge on", "worse": False})
    before, after = joined([h.before for h in given]), joined([h.after for h in given])
    result = compare(before.positions, before.of(measure), after.of(measure), gate.confidence)
    better, worse = result.lower > gate.min_gain, result.difference < -result.standard_error
    decision = {"min_gain": gate.min_gain, "better": better, "worse": worse}
    return GateDecision(better, worse, evidence_of(measure, result, before, after) | decision)


def evidence_of(measure: Measure, result: Comparison, before: DraftScores, after: DraftScores) -> dict[str, Any]:
    """Return the evidence that is stored with a version, as plain numbers for JSON."""
    shares = {
        f"{name}_{when}": finite(float(getattr(scores, name).sum() / result.positions))
        for name in ("agreement", "unknown")
        for when, scores in (("before", before), ("after", after))
    }
    facts = {name: finite(number) for name, number in asdict(result).items()}
    depths = depths_of(measure, before, "before") | depths_of(measure, after, "after")
    return {"measure": measure, **facts, "confidence": result.confidence, **shares, **depths}


def depths_of(measure: Measure, scores: DraftScores, when: str) -> dict[str, list[float]]:
    """Return by depth, from 0, the share of first choices that were right, of chains that were right so far, and, where
    distributions were kept, the probability that the target gave those first choices."""
    chains = scores.chains.sum(0)
    known = {"right": scores.right} | ({"target_probability": scores.chosen} if measure != "agreement" else {})
    return {
        f"{name}_by_depth_{when}": (sums.sum(0)[chains > 0] / chains[chains > 0]).round(4).tolist()
        for name, sums in known.items()
    }


def comparable(
    judges: Iterable[RequestSamples], lessons: Lessons | None = None
) -> tuple[Measure, list[RequestSamples]]:
    """Return the fair measure for these requests, and the requests with the positions it is taken at. Of texts alone,
    with no target that reads them again (``lessons``), agreement is all that can be had."""
    kept = [s for s in judges if len(s.tokens) > s.prompt_len]
    if any(only_mistakes(s) or not (s.k or lessons) for s in kept):
        return "agreement", [whole_output(s) for s in kept]
    return "expected_acceptance", [s for s in kept if len(s)]


def only_mistakes(samples: RequestSamples) -> bool:
    """Return whether only wrongly drafted positions were stored. The first token may be missing in any case."""
    outputs = len(samples.tokens) - samples.prompt_len
    return len(samples) < outputs - 1 and bool((samples.kinds == TokenKind.REJECTED).all())


def whole_output(samples: RequestSamples) -> RequestSamples:
    """Return the request with every output token as a position, the emitted token being its distribution."""
    tokens = samples.tokens[samples.prompt_len :]
    m = len(tokens)
    return replace(
        samples,
        positions=np.arange(samples.prompt_len, samples.prompt_len + m, dtype=np.int32),
        kinds=np.full(m, TokenKind.UNDRAFTED, np.uint8),
        drafted=tokens,
        topk_ids=tokens[:, None],
        topk_logprobs=np.zeros((m, 1), np.float16),
        outside=np.zeros(m, np.float32),
        acceptance=None,
        hidden_states=None,
    )


def finite(number: float) -> float | None:
    """Return a number for JSON; None where it is not finite."""
    return round(number, 6) if np.isfinite(number) else None
