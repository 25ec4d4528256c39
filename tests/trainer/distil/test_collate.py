"""Batches: what is fed, what is predicted, and that the position corrected is the position rejected."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

import trainer.distil.step
from storage.records import RequestSamples, TokenKind
from storage.settings import LearnSettings
from tests.trainer.models import answers, random_prompts, samples_of, tiny_llama
from trainer.distil.branching import context_length
from trainer.distil.collate import TrainingBatch, collate, plan, predict, select, until
from trainer.distil.data import usable
from trainer.distil.distil import distil

A, R, U = TokenKind.ACCEPTED, TokenKind.REJECTED, TokenKind.UNDRAFTED


def ragged() -> list[RequestSamples]:
    return [samples_of(range(2, 9), [3, 5]), samples_of(range(4, 20), [2, 9, 15]), samples_of(range(7, 12), [4])]


def test_each_row_is_its_request_and_nothing_after_the_last_position() -> None:
    batch = collate(ragged())
    assert batch.input_ids.shape == (3, 15)
    assert batch.input_ids[0].tolist() == [2, 3, 4, 5, 6] + [0] * 10
    assert batch.attention_mask.sum(1).tolist() == [5, 15, 4]
    assert batch.attention_mask[0].tolist() == [1] * 5 + [0] * 10


def test_every_position_is_predicted_from_the_token_before_it() -> None:
    samples = ragged()
    batch = collate(samples)
    assert batch.columns.tolist() == [2, 4, 1, 8, 14, 3]
    assert batch.rows.tolist() == batch.requests.tolist() == [0, 0, 1, 1, 1, 2]
    assert batch.tokens.tolist() == [int(s.tokens[p]) for s in samples for p in s.positions]


def test_the_logits_are_those_of_the_prefix_alone_whatever_else_is_in_the_batch() -> None:
    model, samples = tiny_llama(), ragged()
    with torch.inference_mode():
        got = predict(model, collate(samples))
        want = [model(torch.tensor([s.tokens[:p].tolist()])).logits[0, -1] for s in samples for p in s.positions]
    torch.testing.assert_close(got, torch.stack(want), rtol=1e-4, atol=1e-5)


def test_predicting_leaves_the_model_as_it_was() -> None:
    model = tiny_llama()
    predict(model, collate(ragged()))
    assert model(torch.tensor([[3, 4, 5]])).logits.shape == (1, 3, 48)


def test_only_rejected_positions_are_the_drafts_mistakes() -> None:
    s = samples_of(range(2, 12), [2, 3, 4, 5], kinds=[A, R, U, R])
    chosen = select(s, "rejected")
    assert chosen.positions.tolist() == [3, 5] and chosen.topk_ids.tolist() == s.topk_ids[[1, 3]].tolist()
    assert select(s, "verified").positions.tolist() == [2, 3, 4, 5]


def test_all_requests_come_once_within_the_budget() -> None:
    samples = [samples_of(range(n), [n - 1]) for n in (5, 40, 9, 17, 33, 12, 28, 6, 45, 21)]
    samples.append(samples_of(range(9), []))
    chunks = plan(samples, 64, seed=1)
    assert sorted(i for chunk in chunks for i in chunk) == list(range(10))
    assert all(len(c) * max(context_length(samples[i]) for i in c) <= 64 for c in chunks)
    assert len(chunks) < 10
    assert plan(samples, 64, seed=1) == chunks != plan(samples, 64, seed=2)


def test_a_request_longer_than_the_budget_is_a_batch_of_its_own() -> None:
    samples = [samples_of(range(100), [99]), samples_of(range(10), [9])]
    assert sorted(plan(samples, 50)) == [[0], [1]]


def test_indices_survive_the_shuffle() -> None:
    samples = [samples_of([i] * (6 + i), [4, 5]) for i in range(2, 30)]
    for chunk in plan(samples, 64, seed=3):
        batch = collate([samples[i] for i in chunk], chunk)
        assert batch.input_ids[batch.rows, 0].tolist() == [int(samples[i].tokens[0]) for i in batch.requests]


def test_requests_kept_with_different_k_are_cut_to_the_smallest_and_lose_no_mass() -> None:
    wide, narrow = samples_of(range(2, 9), [3, 5], k=6, sure=0.5), samples_of(range(2, 9), [4], k=3, sure=0.5)
    batch = collate([wide, narrow])
    assert batch.topk_ids.shape == (3, 3)
    mass = batch.topk_logprobs.exp().sum(1) + batch.outside
    torch.testing.assert_close(mass, torch.ones(3), rtol=0, atol=2e-3)


def corrected(model: PreTrainedModel, s: RequestSamples) -> list[float]:
    """What the draft gives the target's token at each rejected position, by plain forwards of the prefix."""
    with torch.inference_mode():
        logits = [model(torch.tensor([s.tokens[:p].tolist()])).logits[0, -1] for p in s.positions]
    return [float(row.softmax(-1)[s.tokens[p]]) for row, p in zip(logits, s.positions, strict=True)]


def learns_the_rejected_position(monkeypatch: pytest.MonkeyPatch, shift: int) -> bool:
    """Overfit a few rejected positions, with every prediction moved by ``shift`` columns; has the draft learnt them?"""

    def shifted(batch: TrainingBatch) -> TrainingBatch:
        return replace(batch, columns=(batch.columns + shift).clamp(0, batch.input_ids.shape[1] - 1))

    monkeypatch.setattr(trainer.distil.step, "predict", lambda model, batch: predict(model, shifted(batch)))
    rng = np.random.default_rng(0)
    samples = [samples_of(rng.permutation(np.arange(2, 48))[:24].tolist(), range(4, 24, 3)) for _ in range(3)]
    model = tiny_llama()
    distil(model, samples, LearnSettings(epochs=60, learning_rate=1e-2, positions="rejected"))
    return float(np.mean([corrected(model, s) for s in samples])) > 0.8


def test_the_position_corrected_is_the_position_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    assert learns_the_rejected_position(monkeypatch, 0)


@pytest.mark.parametrize("shift", [-1, 1])
def test_a_loss_that_is_off_by_one_fails_that_test(monkeypatch: pytest.MonkeyPatch, shift: int) -> None:
    assert not learns_the_rejected_position(monkeypatch, shift)


def test_real_answers_are_predicted_where_they_were_given() -> None:
    """The target scored on its own answers by our batches agrees with them everywhere."""
    target = tiny_llama(3)
    batch = collate(answers(target, random_prompts(4)))
    with torch.inference_mode():
        assert predict(target, batch).argmax(1).tolist() == batch.tokens.tolist() == batch.topk_ids[:, 0].tolist()


def test_a_batch_is_full_once_it_has_enough_positions() -> None:
    """Short answers to long prompts share a step; long answers do not wait for company."""
    samples = [samples_of([3] * 54, range(50, 54), prompt_len=50) for _ in range(9)]
    assert [len(chunk) for chunk in plan(samples, 100_000, None, 10)] == [3, 3, 3]  # 12 positions each
    assert [len(chunk) for chunk in plan(samples, 2 * 53, None, 10)] == [2, 2, 2, 2, 1]  # tokens still bound it
    assert len(plan(samples, 100_000)) == 1


def test_what_stands_beyond_a_drafts_positions_is_left_out() -> None:
    whole = samples_of(range(4, 20), [2, 9, 15])
    short = until(whole, 10)
    assert short.tokens.tolist() == list(range(4, 14)) and short.positions.tolist() == [2, 9]
    np.testing.assert_array_equal(short.topk_ids, whole.topk_ids[:2])
    assert until(whole, len(whole.tokens)) is whole
    assert usable([whole, whole], 97, positions=2) == [] and len(usable([whole, short], 97, positions=10)) == 2
