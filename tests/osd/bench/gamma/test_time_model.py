"""The regression of SpecDec++ D.2, and the rates of section 5.1."""

from __future__ import annotations

import numpy as np
import pytest

from osd.bench.gamma.time_model import TimeModel, discard_rate, fit_time_model, verification_rate
from storage.errors import BadInput


def test_exact_times_give_back_their_model() -> None:
    drafted, rounds = [10, 40, 7], [20, 8, 30]
    fitted = fit_time_model(drafted, rounds, [2 * d + 11 * r for d, r in zip(drafted, rounds, strict=True)])
    assert (fitted.draft_ms, fitted.target_ms, fitted.r2) == pytest.approx((2, 11, 1))


def test_the_fit_is_that_of_the_normal_equations_where_nothing_is_negative() -> None:
    random = np.random.default_rng(0)
    counts = random.integers(5, 60, (40, 2))
    times = counts @ [1.5, 6.0] + random.normal(0, 12, 40)
    fitted = fit_time_model(counts[:, 0].tolist(), counts[:, 1].tolist(), times.tolist())
    plain = np.linalg.solve(counts.T @ counts, counts.T @ times)
    assert (fitted.draft_ms, fitted.target_ms) == pytest.approx(tuple(plain))
    explained = 1 - ((times - counts @ plain) ** 2).sum() / ((times - times.mean()) ** 2).sum()
    assert fitted.r2 == pytest.approx(explained)
    assert 0.9 < fitted.r2 < 1


def test_no_time_is_negative() -> None:
    fitted = fit_time_model([1, 2, 3], [3, 2, 1], [6.0, 4.0, 1.0])  # least squares alone: t_draft = −0.25
    assert fitted.draft_ms == 0
    assert fitted.target_ms == pytest.approx((3 * 6 + 2 * 4 + 1 * 1) / (9 + 4 + 1))


@pytest.mark.parametrize(
    ("drafted", "rounds", "times", "told"),
    [([1, 2], [1, 2], [1, 2], "three or more"), ([1, 2, 3], [1, 2], [1, 2, 3], "3, 2 and 3"),
     ([1, 2, 3], [3, 2, 1], [5, 5, 5], "all took the same")],
)  # fmt: skip
def test_too_little_to_fit_is_refused(drafted: list[int], rounds: list[int], times: list[float], told: str) -> None:
    with pytest.raises(BadInput, match=told):
        fit_time_model(drafted, rounds, times)


def test_equations_3_1_and_5_1_agree_when_every_pass_gave_a_token_or_a_discard() -> None:
    """N_draft + N_target = N + N_discarded, which Lemma 3.1 rests on: 30 drafted, 22 accepted, 10 rounds, 32 tokens."""
    model = TimeModel(23.4, 112.0, 1.0)
    discard, verification = discard_rate(30, 22, 32), verification_rate(10, 32)
    assert (discard, verification) == (0.25, 0.3125)
    assert model.latency_ms(discard, verification) * 32 == pytest.approx(model.total_ms(30, 10))


def test_nothing_emitted_has_no_rates() -> None:
    assert discard_rate(4, 2, 0) == verification_rate(1, 0) == 0.0


def test_the_papers_throughput_of_the_target_alone_follows_from_its_times() -> None:
    """Section 5.2: 0.108 s a target pass is 9.26 tokens a second, one pass a token and nothing drafted."""
    alone = TimeModel(20.7, 108.0, 1.0)
    assert 1e3 / alone.total_ms(0, 1) == pytest.approx(9.26, abs=0.005)


def test_the_papers_oracle_follows_from_its_verification_rate() -> None:
    """Section 4.1: N_target ÷ N = 0.164 with (23.4, 112) ms; the mean over prompts is 27.06 ± 4.13 tokens a second."""
    assert 1e3 / TimeModel(23.4, 112.0, 1.0).latency_ms(0.0, 0.164) == pytest.approx(27.06, abs=1.0)
