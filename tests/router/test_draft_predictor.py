"""Least squares on prompts, and weights over drafts."""

from __future__ import annotations

import math

import numpy as np
import pytest

from router.draft_predictor import DraftPredictor
from router.hedge import Hedge
from router.prompt_vector import FIXED, RIDGE, LeastSquares, PromptVectors
from router.throughput import Costs, TextScore, gain, losses

COSTS = Costs(0.5, [3.2 + 0.12 * gamma for gamma in range(13)])


def test_least_squares_is_the_closed_form_of_the_paper() -> None:
    """Ẑ = (Σ b bᵀ)⁻¹ Σ b α, here with the ridge, solved at once by NumPy's own routine."""
    chance = np.random.default_rng(0)
    prompts, alphas = chance.normal(size=(40, 6)), chance.uniform(size=40)
    learner = LeastSquares(6, memory=math.inf)
    for prompt, alpha in zip(prompts, alphas, strict=True):
        learner.learn(prompt, np.array([alpha]))
    rows = np.vstack([prompts, math.sqrt(RIDGE) * np.eye(6)])
    expected, *_ = np.linalg.lstsq(rows, np.concatenate([alphas, np.zeros(6)]), rcond=None)
    probe = chance.normal(size=6)
    assert learner.predict(probe)[0] == pytest.approx(probe @ expected)


def test_least_squares_finds_what_made_the_numbers_and_follows_when_it_changes() -> None:
    chance = np.random.default_rng(1)
    old, new = np.array([0.5, 0.2, -0.1]), np.array([0.1, -0.2, 0.4])
    learner = LeastSquares(3, memory=50)
    for truth, count in ((old, 200), (new, 300)):
        for _ in range(count):
            vector = chance.normal(size=3)
            learner.learn(vector, np.array([vector @ truth]))
    probe = np.array([1.0, 1.0, 1.0])
    assert learner.predict(probe)[0] == pytest.approx(probe @ new, abs=0.02)


def test_a_vector_has_length_perplexity_and_a_unit_of_tfidf() -> None:
    vectors = PromptVectors(8)
    vectors.learn([1, 2, 3])
    vector = vectors.vector([1, 1, 7], math.e**2)
    assert vector.shape == (8,)
    assert vector[:FIXED] == pytest.approx([1.0, math.log(4) / 5, 0.4])
    assert np.linalg.norm(vector[FIXED:]) == pytest.approx(1.0)


def test_rare_tokens_weigh_more_than_common_ones() -> None:
    vectors = PromptVectors(64)
    for _ in range(50):
        vectors.learn([5])
    both = vectors.vector([5, 9], None)
    alone = {token: vectors.vector([token], None)[FIXED:] for token in (5, 9)}
    assert abs(both[FIXED:] @ alone[9]) > 2 * abs(both[FIXED:] @ alone[5])


def test_an_empty_prompt_has_a_vector_too() -> None:
    assert np.isfinite(PromptVectors(8).vector([], None)).all()


def test_foresight_tells_prompts_apart() -> None:
    foresight, vectors = DraftPredictor(16), PromptVectors(16)
    for _ in range(40):
        foresight.add_score(vectors.vector([1, 2, 3], 5.0), TextScore(0.9, 50), COSTS)
        foresight.add_score(vectors.vector([7, 8, 9], 5.0), TextScore(0.1, 50), COSTS)
    good, bad = (foresight.expect(vectors.vector(tokens, 5.0)) for tokens in ([1, 2, 3], [7, 8, 9]))
    assert good[0] == pytest.approx(0.9, abs=0.05)
    assert bad[0] == pytest.approx(0.1, abs=0.05)
    assert good[1] == pytest.approx(gain(0.9, COSTS), abs=0.1)


def test_a_text_without_a_judged_token_teaches_nothing() -> None:
    foresight = DraftPredictor(4)
    foresight.add_score(np.ones(4), TextScore(0.0, 0), COSTS)
    assert foresight.seen == 0


def test_losses_are_shares_of_the_best_speed() -> None:
    cheap, dear = COSTS, Costs(2.0, COSTS.verify_ms)
    lost = losses([TextScore(0.8, 50), TextScore(0.8, 50)], [cheap, dear])
    assert lost[0] == 0
    assert 0 < lost[1] < 1


def test_regret_against_the_best_draft_is_within_its_bound() -> None:
    """Without drift: loss of the weighted mean − loss of the best ≤ ln N ÷ η + η T ÷ 8, plus what is handed round."""
    chance = np.random.default_rng(2)
    hedge, spent, each = Hedge(rate=0.5), 0.0, {"a": 0.0, "b": 0.0, "c": 0.0}
    for _ in range(600):
        lost = {"a": chance.uniform(0.2, 0.5), "b": chance.uniform(0.1, 0.4), "c": chance.uniform(0.0, 1.0)}
        weights = hedge.weights() or dict.fromkeys(each, 1 / 3)
        spent += sum(weights[d] * lost[d] for d in each)
        hedge.learn(lost)
        each = {d: each[d] + lost[d] for d in each}
    assert spent - min(each.values()) <= math.log(3) / 0.5 + 0.5 * 600 / 8 + 0.01 * 600
    assert max(hedge.weights(), key=hedge.weights().__getitem__) == "b"


def test_the_weights_turn_when_the_best_draft_changes() -> None:
    hedge = Hedge()
    for best, worst in (("a", "b"), ("b", "a")):
        for _ in range(200):
            hedge.learn({best: 0.0, worst: 0.3})
        turns = hedge.weights()
        assert turns[best] > 0.9
    turned = Hedge()
    for _ in range(400):
        turned.learn({"a": 0.0, "b": 0.3})
    for _ in range(20):
        turned.learn({"a": 0.3, "b": 0.0})
    assert turned.weights()["b"] > 0.5


def test_a_sudden_loss_of_the_leader_is_noticed() -> None:
    chance = np.random.default_rng(3)
    hedge = Hedge()
    for _ in range(300):
        hedge.learn({"a": abs(chance.normal(0.1, 0.03)), "b": abs(chance.normal(0.3, 0.03))})
    quiet = hedge.alarms
    for _ in range(30):
        hedge.learn({"a": abs(chance.normal(0.6, 0.03)), "b": abs(chance.normal(0.3, 0.03))})
    assert hedge.alarms > quiet


def test_drafts_come() -> None:
    hedge = Hedge()
    hedge.learn({"a": 0.1})
    hedge.learn({"a": 0.1, "b": 0.0})
    assert sum(hedge.weights().values()) == pytest.approx(1.0)
