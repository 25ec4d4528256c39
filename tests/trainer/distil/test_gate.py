"""The gate: its measure against the full vocabulary, its interval against the textbook, its odds by simulation."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from osd.verification.rejection_sampling import expected_acceptance
from storage.records import RequestSamples, TokenKind
from storage.settings import GateSettings, LearnSettings
from tests.trainer.models import VOCAB, answers, random_prompts, samples_of, tiny_llama
from trainer.distil.distil import distil
from trainer.distil.gate import (
    GateDecision,
    as_served,
    comparable,
    compare,
    judge,
    only_mistakes,
    score_both,
    whole_output,
)
from trainer.distil.scores import score


def full(model: torch.nn.Module, target: torch.nn.Module, tokens: list[int], positions: list[int]) -> float:
    with torch.inference_mode():
        p, q = (m(torch.tensor([tokens])).logits[0, [i - 1 for i in positions]].softmax(-1) for m in (target, model))
    return float(expected_acceptance(p, q).sum())


def test_scores_are_the_full_sums_when_everything_was_kept() -> None:
    target, draft = tiny_llama(1), tiny_llama(2)
    samples = answers(target, random_prompts(5), k=VOCAB)
    got = score(draft, samples)
    want = [full(draft, target, s.tokens.tolist(), s.positions.tolist()) for s in samples]
    np.testing.assert_allclose(got.expected, want, rtol=2e-3)
    assert (got.unknown == 0).all() and got.positions.tolist() == [12.0] * 5


def test_with_top_k_the_full_sum_lies_between_the_two_ends() -> None:
    target, draft = tiny_llama(1), tiny_llama(2)
    samples = answers(target, random_prompts(5), k=6)
    got = score(draft, samples)
    want = np.array([full(draft, target, s.tokens.tolist(), s.positions.tolist()) for s in samples])
    assert (got.expected < want).all() and (want < got.expected + got.unknown).all()


def test_requests_of_equal_weight_are_the_textbook_t_test() -> None:
    rng = np.random.default_rng(0)
    before, after = rng.normal(5, 1, 12), rng.normal(5.4, 1, 12)
    got = compare(np.full(12, 10.0), before, after, 0.95)
    want = stats.ttest_rel(after / 10, before / 10).confidence_interval(0.9)
    assert got.lower == pytest.approx(want.low) and got.difference == pytest.approx((after - before).mean() / 10)


def test_one_request_proves_nothing() -> None:
    assert compare(np.array([10.0]), np.array([1.0]), np.array([9.0]), 0.9).lower == -float("inf")


def test_a_draft_that_is_no_better_passes_as_seldom_as_the_confidence_says() -> None:
    """600 fair comparisons at 0.9: passes ~ Binomial(600, 0.1); outside 35 to 90 once in 10,000."""
    rng = np.random.default_rng(1)
    passed = 0
    for _ in range(600):
        positions = rng.integers(5, 64, 24).astype(float)
        by_request = rng.normal(0, 0.08, 24)  # positions of a request depend on each other
        before = 0.6 * positions
        after = before + positions * by_request + rng.normal(0, 0.3, 24) * np.sqrt(positions)
        passed += compare(positions, before, after, 0.9).lower > 0
    assert 35 <= passed <= 90


def judged(current: nn.Module, candidate: nn.Module, judges: list[RequestSamples], gate: GateSettings) -> GateDecision:
    return judge([score_both(current, candidate, judges)], gate)


def test_a_gain_that_serving_rounds_away_is_none() -> None:
    """What training moved by less than half a step of bfloat16 is no candidate where bfloat16 serves."""
    target, draft = tiny_llama(1), tiny_llama(2)
    with torch.no_grad():
        for weight in draft.parameters():
            weight.copy_(weight.bfloat16())  # moved from here by too little, they round back
    samples = answers(target, random_prompts(30))
    trained = copy.deepcopy(draft)
    distil(trained, samples, LearnSettings(epochs=20, learning_rate=5e-3, batch_tokens=128))
    with torch.no_grad():
        for old, new in zip(draft.parameters(), trained.parameters(), strict=True):
            new.copy_(old + (new - old).clamp(-(2**-10) * old.abs(), 2**-10 * old.abs()))
    gate = GateSettings(min_gain=0.0)
    assert judged(draft, trained, samples, gate).better
    rounded = [as_served(each, torch.bfloat16) for each in (draft, trained)]
    decision = judged(rounded[0], rounded[1], samples, gate)
    assert not decision.better and decision.evidence["difference"] == 0
    assert as_served(trained, torch.float32) is trained and next(trained.parameters()).dtype == torch.float32


def test_a_trained_draft_passes_and_a_damaged_one_does_not() -> None:
    target, draft = tiny_llama(1), tiny_llama(2)
    samples = answers(target, random_prompts(40))
    trained, damaged = copy.deepcopy(draft), copy.deepcopy(draft)
    distil(trained, samples[:30], LearnSettings(epochs=20, learning_rate=5e-3, batch_tokens=128))
    with torch.no_grad():
        damaged.get_output_embeddings().weight.add_(torch.randn(VOCAB, 32), alpha=0.05)
    better = judged(draft, trained, samples[30:], GateSettings())
    assert better.better and better.evidence["after"] > better.evidence["before"]
    assert better.evidence["requests"] == 10 and better.evidence["positions"] == 120
    assert not judged(trained, damaged, samples[30:], GateSettings()).better


def test_the_same_weights_are_not_better() -> None:
    draft, samples = tiny_llama(2), answers(tiny_llama(1), random_prompts(8))
    verdict = judged(draft, copy.deepcopy(draft), samples, GateSettings())
    assert not verdict.better and verdict.evidence["difference"] == 0


def test_a_gain_smaller_than_asked_for_does_not_pass() -> None:
    target, draft = tiny_llama(1), tiny_llama(2)
    samples = answers(target, random_prompts(20))
    trained = copy.deepcopy(draft)
    distil(trained, samples, LearnSettings(epochs=5, learning_rate=5e-3))
    gain = judged(draft, trained, samples, GateSettings()).evidence["lower"]
    assert gain > 0 and not judged(draft, trained, samples, GateSettings(min_gain=gain + 0.01)).better


def test_what_was_heard_in_lots_is_one_comparison() -> None:
    current, candidate, samples = tiny_llama(2), tiny_llama(3), answers(tiny_llama(1), random_prompts(9))
    lots = [score_both(current, candidate, samples[:4]), None, score_both(current, candidate, samples[4:])]
    assert judge(lots, GateSettings()) == judged(current, candidate, samples, GateSettings())


def test_lots_of_which_one_needs_agreement_are_measured_by_agreement_alone() -> None:
    current, candidate, samples = tiny_llama(2), tiny_llama(3), answers(tiny_llama(1), random_prompts(4))
    mistakes = [samples_of(range(2, 14), [3, 8]), samples_of(range(3, 15), [4, 9])]
    lots = [score_both(current, candidate, samples), score_both(current, candidate, mistakes)]
    evidence = judge(lots, GateSettings()).evidence
    assert (evidence["measure"], evidence["requests"], evidence["positions"]) == ("agreement", 2, 20)


def test_nothing_to_judge_on_is_not_better() -> None:
    assert not judged(tiny_llama(), tiny_llama(1), [], GateSettings()).better


def test_where_only_mistakes_were_kept_the_measure_is_agreement_over_the_whole_output() -> None:
    s = samples_of(range(2, 14), [3, 8])
    assert only_mistakes(s)
    measure, (judged,) = comparable([s])
    assert measure == "agreement" and judged.positions.tolist() == list(range(2, 12))
    assert judged.topk_ids[:, 0].tolist() == list(range(4, 14))


def test_every_position_kept_is_not_only_mistakes_even_when_all_were_wrong() -> None:
    wrong = samples_of(range(2, 8), [3, 4, 5], prompt_len=2)  # the first token came with the prompt
    mixed = samples_of(range(2, 14), [3, 8], kinds=[TokenKind.REJECTED, TokenKind.ACCEPTED])
    assert not only_mistakes(wrong) and not only_mistakes(mixed)
    assert comparable([wrong, mixed])[0] == "expected_acceptance"


def test_agreement_counts_first_choices() -> None:
    target = tiny_llama(1)
    samples = [whole_output(s) for s in answers(target, random_prompts(4))]
    assert score(target, samples).agreement.tolist() == [12.0] * 4
