"""The online regression, beside a plain one in matrices and beside what it should find."""

from __future__ import annotations

import random

import numpy as np
import pytest

from osd.gamma.goodput.acceptance import CONTEXTS, Acceptance, Regression, expected, log_odds

PRIOR, SPREAD, MEMORY = 0.25, 0.8, 100.0


def plain_step(mean, var, features, verdict):
    """One step of an extended Kalman filter over all terms together, covariances between b and w alone kept."""
    x, v = float(features @ mean), float(features @ var @ features)
    p = 1 / (1 + np.exp(-x / np.sqrt(1 + np.pi / 8 * v)))
    h = p * (1 - p)
    gain = var @ features / (1 + h * v)
    mean, var = mean + gain * (verdict - p), var - np.outer(gain, gain) * h * (1 + h * v)
    kept = np.zeros_like(var)
    kept[:2, :2] = var[:2, :2]
    kept[2, 2], kept[3, 3] = var[2, 2], var[3, 3]
    grown = np.minimum(np.diag(kept) * (1 + 4 * h / MEMORY), [1.0, PRIOR, SPREAD**2, SPREAD**2])
    np.fill_diagonal(kept, grown)
    return mean, kept


def test_a_verdict_moves_what_a_plain_filter_moves() -> None:
    chance, model = random.Random(1), Regression(1.0, PRIOR, SPREAD, MEMORY)
    request, token = [0.0, SPREAD**2], model.context(7)
    mean, var = np.array([0.0, 1.0, 0.0, 0.0]), np.diag([1.0, PRIOR, SPREAD**2, SPREAD**2])
    for _ in range(50):
        z, verdict = chance.uniform(-3, 3), float(chance.random() < 0.6)
        model.learn(z, request, token, verdict)
        mean, var = plain_step(mean, var, np.array([1.0, z, 1.0, 1.0]), verdict)
        assert [model.mean, model.slope, request[0], token[0]] == pytest.approx(mean.tolist())
        assert [model.var, model.var_slope, request[1], token[1]] == pytest.approx(np.diag(var).tolist())


@pytest.mark.parametrize("rate", [0.05, 0.5, 0.95])
def test_it_finds_how_often_tokens_are_accepted(rate: float) -> None:
    chance, known = random.Random(2), Acceptance(1.0, 200.0)
    for _ in range(600):
        request = known.request()
        look = known.first, 0.0, request[0], known.first.context(chance.randrange(50))
        known.learn([(look, None, None)], 1, int(chance.random() < rate), ())
    said = expected(*known.first.look(0.0, [0.0, 1.0], [0.0, 1.0]))
    assert said == pytest.approx(rate, abs=0.1)


def test_a_head_is_believed_as_far_as_it_was_right() -> None:
    chance, known = random.Random(3), Acceptance(1.0, 200.0)
    nobody = [0.0, 0.0]
    for knows in (True, False):
        for _ in range(600):
            likely = chance.choice([0.1, 0.9])
            said = likely if knows else chance.choice([0.1, 0.9])
            after = known.after, 0.0, nobody, nobody
            mean, _ = after[0].look(*after[1:])
            told = known.told, log_odds(said) - mean, [mean, 0.0], nobody
            known.learn([((known.first, 0.0, nobody, nobody), after, told)], 1, int(chance.random() < likely), ())
        assert (0.7 if knows else -0.2) < known.told.slope < (1.3 if knows else 0.3)


def test_a_request_that_fares_worse_than_others_is_found_out() -> None:
    known, good, bad = Acceptance(1.0, 200.0), None, None
    good, bad = known.request(), known.request()
    for k in range(40):
        for request, taken in ((good, 1), (bad, 0)):
            known.learn([((known.first, 0.0, request[0], known.first.context(k)), None, None)], 1, taken, ())
    chances = [expected(*known.first.look(0.0, request[0], [0.0, 1.0])) for request in (good, bad)]
    assert chances[0] > 0.6 and chances[1] < 0.4


def test_verdicts_end_with_the_first_refusal() -> None:
    known = Acceptance(1.0, 200.0)
    request = known.request()
    looks = [((known.then, 0.0, request[0], known.then.context(k)), None, None) for k in range(4)]
    known.learn(looks, 4, 1, ())
    assert known.then.context(1)[0] < 0 and known.then.context(2) == [0.0, 1.0]


def test_what_rests_is_forgotten_and_memory_is_bounded() -> None:
    model = Regression(0.0, 0.0, 1.0, 200.0)
    model.mean, model.var = -4.0, 0.1
    model.fade(0.5)
    assert (model.mean, model.var) == (-2.0, pytest.approx(0.55))
    for token in range(CONTEXTS + 10):
        model.context(token)
    assert len(model.contexts) == CONTEXTS and 0 not in model.contexts


def test_log_odds_are_bounded() -> None:
    assert log_odds(0.0) == pytest.approx(-log_odds(1.0)) and expected(log_odds(0.3), 0.0) == pytest.approx(0.3)
