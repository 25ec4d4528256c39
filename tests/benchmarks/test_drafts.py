"""What `python -m benchmarks drafts` makes of its times."""

from __future__ import annotations

import random
import statistics

import pytest

from benchmarks.drafts import AUTO, OnePrompt, _error, _ratio, as_chosen

DRAFTS = ["small", "large"]


def prompts(seconds: list[tuple[float, float, float]]) -> list[OnePrompt]:
    """By (auto, small, large)."""
    return [OnePrompt(10, dict(zip([AUTO, *DRAFTS], each, strict=True)), "small", {}) for each in seconds]


def test_auto_is_compared_with_the_draft_that_is_best_on_the_other_half() -> None:
    some = prompts([(1.0, 1.0, 3.0), (2.0, 2.0, 1.9), (1.0, 1.0, 2.0), (1.0, 1.0, 2.0)])
    assert _ratio(some, DRAFTS) == 1.0, "small is best on both"
    one_lucky = prompts([(1.0, 1.0, 0.1), (1.0, 1.0, 1.1), (1.0, 1.0, 1.1), (1.0, 1.0, 1.1)])
    assert _ratio(one_lucky, DRAFTS) == pytest.approx((1.0 + 1.1 + 1.0 + 1.1) / 4), "large is, where it was lucky"


def test_drafts_that_are_worth_the_same_do_not_beat_the_choice_among_them_by_luck() -> None:
    """Of 400 runs of 20 prompts with 20 % of noise the ratio is 1 on average, within three errors of that mean."""
    chance = random.Random(3)
    ratios, errors = [], []
    for _ in range(400):
        some = prompts([tuple(chance.gauss(1, 0.2) for _ in range(3)) for _ in range(20)])  # type: ignore[misc]
        ratios.append(_ratio(some, DRAFTS))
        errors.append(_error(some, DRAFTS))
    spread = statistics.stdev(ratios)
    assert statistics.mean(ratios) == pytest.approx(1, abs=3 * spread / 20 + 0.003), "0.003: a ratio of noisy sums"
    assert 0.75 * spread < statistics.mean(errors) < spread


def test_choices_are_told_apart_from_what_the_machine_did_meanwhile() -> None:
    """Auto always takes the better draft, on a machine that happened to be slow while it decoded."""
    some = prompts([(1.3, 1.0, 2.0), (1.1, 1.0, 2.0), (1.2, 1.0, 1.5), (1.0, 1.0, 1.5)])
    assert _ratio(some, DRAFTS) == pytest.approx(4.0 / 4.6)
    taken = as_chosen(some)
    assert _ratio(taken, DRAFTS) == 1.0 and _error(taken, DRAFTS) == 0.0
    some[0].chosen = "large"
    assert _ratio(as_chosen(some), DRAFTS) == pytest.approx(4.0 / 5.0)
    assert some[0].seconds[AUTO] == 1.3, "what was measured stays"
