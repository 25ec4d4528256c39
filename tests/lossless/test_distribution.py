"""Sampled output follows the target's distribution.

A target with nine tokens is small enough to enumerate: the probability of every two-token text is known
exactly, and thousands of engine samples are held against it with a chi-square test. The level is 1e-4, so
with the ten cases below a false alarm has odds of at most 1 in 1,000 for a fresh seed; the seeds are
fixed, so that a case that passes goes on passing. A sampler that draws from the draft instead is caught (last test).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from scipy.stats import chisquare

from osd.engine.engine import Engine
from osd.gamma.base import CostModel, DraftDecision, GammaController, Signal
from osd.gamma.factory import make_controller
from osd.gamma.planner import GammaPlanner
from osd.gamma.rules.fsm import FixedController
from osd.models.pair import Pair
from osd.verification.warping import Warp
from storage.records import Request
from storage.sampling import Sampling
from tests.support.lossless import require_lossless
from tests.support.models import random_pair
from tests.support.settings import settings_of

pytestmark = pytest.mark.usefixtures("compiled")

LEVEL = 1e-4
PROMPT = (3, 7, 2)
SAMPLES = 1500


@pytest.fixture(scope="module")
def pair() -> Pair:
    return random_pair("llama", noise=0.35, vocabulary=9)


@torch.inference_mode()
def exact(pair: Pair, sampling: Sampling) -> dict[tuple[int, ...], float]:
    """The target's probability of each text of two tokens."""

    def after(tokens: tuple[int, ...]) -> torch.Tensor:
        logits = pair.target.module(input_ids=torch.tensor([tokens]), use_cache=False).logits[:, -1:]
        warp = Warp.of([sampling], 9, torch.device("cpu"))
        assert warp is not None
        return warp(logits)[0, 0].double()

    first = after(PROMPT)
    return {
        (a, b): float(first[a] * second[b])
        for a in range(9)
        if first[a] > 0
        for second in [after((*PROMPT, a))]
        for b in range(9)
        if second[b] > 0
    }


def sample(
    pair: Pair, sampling: Sampling, gamma: int, batch: int, controller: GammaController | None = None
) -> Counter[tuple[int, ...]]:
    settings = settings_of(serve__max_batch=batch, serve__max_length=32, gamma__rule="fixed", gamma__initial=gamma)
    # a third token is asked for, so that the two that count may come from a whole draft of two
    plain = Request(PROMPT, max_new_tokens=3, ignore_eos=True)
    asked = (replace(plain, id=str(seed), sampling=replace(sampling, seed=seed)) for seed in range(SAMPLES))
    engine = require_lossless(Engine(pair, settings))
    if controller:
        engine.planner = GammaPlanner(controller, {})
    return Counter(c.tokens[:2] for c in engine.run(asked))


def p_value(seen: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float]) -> float:
    """Chi-square with texts expected less than five times thrown together; 0 if an impossible text was seen."""
    if set(seen) - set(expected):
        return 0.0
    total = sum(seen.values())
    common = [text for text, p in expected.items() if p * total >= 5]
    observed, wanted = [seen[t] for t in common], [expected[t] * total for t in common]
    if (rest := total - sum(wanted)) > 1e-6:
        observed, wanted = [*observed, total - sum(observed)], [*wanted, rest]
    scale = total / sum(wanted)
    return float(chisquare(observed, [w * scale for w in wanted]).pvalue) if len(wanted) > 1 else 1.0


CASES = [
    (Sampling(0.7), 2, 64),
    (Sampling(1.0), 2, 64),
    (Sampling(1.0), 1, 3),
    (Sampling(1.0), 0, 64),
    (Sampling(1.0, top_k=4), 2, 64),
    (Sampling(1.0, top_p=0.8), 2, 64),
    (Sampling(0.7, top_k=6, top_p=0.9), 2, 1),
    (Sampling(0.7, top_k=3), 1, 8),
]


@pytest.mark.parametrize(("sampling", "gamma", "batch"), CASES)
def test_two_tokens_follow_the_target(pair: Pair, sampling: Sampling, gamma: int, batch: int) -> None:
    expected = exact(pair, sampling)
    assert sum(expected.values()) == pytest.approx(1.0)
    assert p_value(sample(pair, sampling, gamma, batch), expected) > LEVEL


def test_this_test_would_see_the_draft_speaking(pair: Pair) -> None:
    """The same samples against the draft's own distribution fail by far, so the test can tell them apart."""
    swapped = Pair(pair.draft, pair.draft, None, frozenset())
    assert p_value(sample(pair, Sampling(1.0), 2, 64), exact(swapped, Sampling(1.0))) < LEVEL


class Declining(FixedController):
    """Declines every token whose signal is below 0.2."""

    name = "declining"

    def __init__(self, gamma: int, signal: Signal) -> None:
        super().__init__(gamma)
        self.signal: Signal = signal

    def should_continue(self, rows: Sequence[object], drafted: int, signals: Sequence[float]) -> list[DraftDecision]:
        return [DraftDecision.ON if signal >= 0.2 else DraftDecision.DECLINE for signal in signals]


def test_declining_on_the_peak_keeps_the_distribution(pair: Pair) -> None:
    seen = sample(pair, Sampling(1.0), 2, 64, Declining(2, "peak"))
    assert p_value(seen, exact(pair, Sampling(1.0))) > LEVEL


def test_declining_on_what_was_drawn_would_not(pair: Pair) -> None:
    """Why a token may be declined on its peak only: unlikely tokens would be drawn twice."""
    seen = sample(pair, Sampling(1.0), 2, 64, Declining(2, "confidence"))
    assert p_value(seen, exact(pair, Sampling(1.0))) < LEVEL


def test_goodput_keeps_the_distribution(pair: Pair) -> None:
    settings = settings_of(gamma__initial=2, gamma__max=3)
    seen = sample(pair, Sampling(1.0), 2, 64, make_controller(settings.gamma, CostModel(), "goodput"))
    assert p_value(seen, exact(pair, Sampling(1.0))) > LEVEL


def test_texts_are_many(pair: Pair) -> None:
    """A nearly deterministic target would make the cases above easy."""
    probabilities = sorted(exact(pair, Sampling(1.0)).values(), reverse=True)
    assert len(list(itertools.takewhile(lambda p: p > 0.005, probabilities))) >= 12
