"""The regression of SpecDec++ D.2."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.gamma.scene import TimeModel, fit_time_model


def fitted_to(texts: list[tuple[int, int, float]]) -> TimeModel:
    """The model of texts that have one."""
    model = fit_time_model(texts)
    assert model is not None
    return model


def test_exact_times_give_back_their_model() -> None:
    drafted, rounds = [10, 40, 7], [20, 8, 30]
    fitted = fitted_to([(d, r, 2.0 * d + 11 * r) for d, r in zip(drafted, rounds, strict=True)])
    assert (fitted.draft_ms, fitted.target_ms, fitted.r2) == pytest.approx((2, 11, 1))


def test_the_fit_is_that_of_the_normal_equations_where_nothing_is_negative() -> None:
    random = np.random.default_rng(0)
    counts = random.integers(5, 60, (40, 2))
    times = counts @ [1.5, 6.0] + random.normal(0, 12, 40)
    fitted = fitted_to([(*pair, time) for pair, time in zip(counts.tolist(), times.tolist(), strict=True)])
    plain = np.linalg.solve(counts.T @ counts, counts.T @ times)
    assert (fitted.draft_ms, fitted.target_ms) == pytest.approx(tuple(plain))
    explained = 1 - ((times - counts @ plain) ** 2).sum() / ((times - times.mean()) ** 2).sum()
    assert fitted.r2 == pytest.approx(explained)
    assert 0.9 < fitted.r2 < 1


def test_no_time_is_negative() -> None:
    fitted = fitted_to([(1, 3, 6.0), (2, 2, 4.0), (3, 1, 1.0)])  # least squares alone: t_draft = −0.25
    assert fitted.draft_ms == 0
    assert fitted.target_ms == pytest.approx((3 * 6 + 2 * 4 + 1 * 1) / (9 + 4 + 1))


@pytest.mark.parametrize("texts", [[], [(1, 1, 1.0), (2, 2, 2.0)], [(1, 3, 5.0), (2, 2, 5.0), (3, 1, 5.0)]])
def test_too_little_to_fit_has_no_model(texts: list[tuple[int, int, float]]) -> None:
    assert fit_time_model(texts) is None
