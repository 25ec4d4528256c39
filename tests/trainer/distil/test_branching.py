"""Learning behind refused tokens: rows that hold branches beside each branch read by itself, weights, and what is
refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
)

from storage.branches import Branches
from storage.errors import BadSetting
from storage.records import RequestSamples, TokenKind
from storage.settings import LearnSettings, Settings
from tests.trainer.models import VOCAB, answers, random_prompts, samples_of, tiny_llama
from trainer.__main__ import _require_learnable
from trainer.distil.branching import BEHIND, SampleWeights, context_length, count, unfold
from trainer.distil.collate import collate, plan, predict, select, until
from trainer.distil.data import is_usable
from trainer.distil.distil import distil
from trainer.distil.epoch import packs
from trainer.distil.gate import score
from trainer.distil.losses import cross_entropy, forward_kl
from trainer.distil.step import Losses

SMALL = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}


def gpt2() -> PreTrainedModel:
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=1, n_head=2, n_positions=128))


def bloom() -> PreTrainedModel:
    return BloomForCausalLM(BloomConfig(vocab_size=VOCAB, hidden_size=32, n_layer=1, n_head=2))


def windowed() -> PreTrainedModel:
    return MistralForCausalLM(
        MistralConfig(**SMALL, intermediate_size=64, num_key_value_heads=2, sliding_window=8, head_dim=16)
    )


def branched(target: PreTrainedModel, draft: PreTrainedModel, prompts: int = 8, depth: int = 3) -> list[RequestSamples]:
    """What serving leaves: texts of ``target``, and where ``draft`` is wrong its own tokens with the target's say."""
    return [_branched(target, draft, samples, depth) for samples in answers(target, random_prompts(prompts))]


@torch.inference_mode()
def _branched(target: PreTrainedModel, draft: PreTrainedModel, samples: RequestSamples, depth: int) -> RequestSamples:
    begins, kept = [], []
    text = samples.tokens.tolist()
    for at in samples.positions.tolist():
        way = text[:at]
        for _ in range(depth):
            way.append(int(draft(torch.tensor([way])).logits[0, -1].argmax()))
        if way[at] != text[at]:
            begins.append(at)
            kept.append((way[at:], target(torch.tensor([way])).logits[0, -depth:].log_softmax(-1)))
    if not begins:
        return samples
    logprobs, ids = torch.cat([said for _, said in kept]).topk(samples.topk_ids.shape[1])
    own = Branches(
        np.array(begins, np.int32), np.full(len(begins), depth, np.int32),
        np.array([token for way, _ in kept for token in way], np.int32), ids.numpy().astype(np.int32),
        logprobs.numpy().astype(np.float16), (1 - logprobs.exp().sum(1)).clamp(min=0).numpy(),
    )  # fmt: skip
    return replace(samples, branches=own)


@pytest.mark.parametrize(("make", "whole"), [(tiny_llama, True), (gpt2, True), (bloom, False), (windowed, False)])
def test_a_row_with_branches_says_what_each_says_by_itself(make: Callable[[], PreTrainedModel], whole: bool) -> None:
    """Logits and gradients; where a model computes them otherwise, that is found and each is read by itself."""
    torch.manual_seed(0)
    model = make().eval()
    assert packs(model) == whole
    if not whole:
        return
    samples = branched(tiny_llama(1), tiny_llama(2), 3)
    weights = SampleWeights(0.5, 2.0)
    together = collate(samples, weights=weights)
    apart = [part for s in samples for part in unfold(s)]
    assert together.input_ids.shape[1] == max(map(context_length, samples)) and len(together) == sum(map(count, apart))
    logits = predict(model, together)
    with torch.inference_mode():
        plain = [predict(model, collate([part])) for part in apart]
    torch.testing.assert_close(logits, torch.cat(plain), rtol=1e-3, atol=1e-4)
    losses = Losses(model, LearnSettings())
    gradients = []
    for batch in ([together], [collate([part], weights=weights) for part in apart]):
        model.zero_grad()
        total = torch.stack([losses(each) for each in batch]).sum()
        total.backward()
        gradients.append([total.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("make", [tiny_llama, bloom])
def test_student_samples_teach_what_the_target_says_there(make: Callable[[], PreTrainedModel]) -> None:
    target, draft = tiny_llama(1), tiny_llama(2)
    samples = branched(target, draft)
    torch.manual_seed(0)
    learner = make()
    behind = [part for s in samples for part in unfold(s) if part.kinds[0] == BEHIND]
    before = score(learner, behind).expected.sum()
    learn = LearnSettings(sampling="student", epochs=10, learning_rate=5e-3, batch_tokens=512)
    done = distil(learner, samples, learn)
    assert done.positions == 10 * sum(len(s.branches or ()) for s in samples) and done.requests == 8
    assert score(learner, behind).expected.sum() > 1.2 * before


def test_what_each_kind_of_sampling_takes() -> None:
    (s,) = branched(tiny_llama(1), tiny_llama(2), 1)
    assert s.branches is not None
    assert select(s, "verified").branches is None
    assert select(s, "verified", "mixed") is s
    student = select(s, "rejected", "student")
    assert len(student) == 0 and count(student) == len(s.branches)
    kinds = replace(s, kinds=np.full(len(s), TokenKind.REJECTED, np.uint8))
    assert count(select(kinds, "rejected", "mixed")) == len(s) + len(s.branches)


def test_the_targets_share_of_the_loss_is_beta_whatever_there_is_of_each() -> None:
    samples = branched(tiny_llama(1), tiny_llama(2), 4)
    plain = answers(tiny_llama(1), random_prompts(2, seed=5))
    for some in (samples + plain, [part for s in samples + plain for part in unfold(s)]):
        weights = SampleWeights.of(some, LearnSettings(sampling="mixed", mix=0.3))
        batch = collate(some, weights=weights)
        texts = sum(float(weights.at(s)[: len(s)][s.kinds != BEHIND].sum()) for s in some)
        assert float(batch.weights.sum()) == pytest.approx(len(batch), rel=1e-5)
        assert texts / len(batch) == pytest.approx(0.3, rel=1e-5)
    assert SampleWeights.of(plain, LearnSettings(sampling="mixed")) == SampleWeights()
    assert SampleWeights.of(samples, LearnSettings(sampling="student")) == SampleWeights()


def test_the_gate_judges_texts_alone() -> None:
    samples, draft = branched(tiny_llama(1), tiny_llama(2), 3), tiny_llama(3)
    bare = [replace(s, branches=None) for s in samples]
    for name in ("positions", "expected", "agreement"):
        assert np.allclose(getattr(score(draft, samples), name), getattr(score(draft, bare), name))


def test_batches_count_what_branches_bring() -> None:
    samples = branched(tiny_llama(1), tiny_llama(2), 6)
    chunks = plan(samples, 150)
    assert sorted(i for chunk in chunks for i in chunk) == list(range(6))
    assert all(len(chunk) * max(context_length(samples[i]) for i in chunk) <= 150 for chunk in chunks if len(chunk) > 1)


def test_branches_beyond_what_a_draft_knows_are_left_out() -> None:
    (s,) = branched(tiny_llama(1), tiny_llama(2), 1)
    assert s.branches is not None
    limit = int(s.branches.begins[1] + s.branches.lengths[1])
    short = until(s, limit)
    assert short.branches is not None and short.branches.count == 2
    assert (short.branches.begins + short.branches.lengths <= limit).all()


def test_a_request_whose_branches_are_no_distributions_is_not_used() -> None:
    (s,) = branched(tiny_llama(1), tiny_llama(2), 1)
    assert s.branches is not None and is_usable(s, VOCAB)
    assert not is_usable(replace(s, branches=replace(s.branches, outside=s.branches.outside + 1)), VOCAB)
    assert not is_usable(replace(s, branches=replace(s.branches, tokens=s.branches.tokens + VOCAB)), VOCAB)


def test_fine_tuning_learns_the_emitted_tokens_and_nothing_else() -> None:
    samples = answers(tiny_llama(1), random_prompts(12))
    blind = [replace(s, topk_ids=(s.topk_ids + 1) % VOCAB) for s in samples]  # the distributions tell another story
    learn = LearnSettings(loss="cross_entropy", epochs=20, learning_rate=5e-3, batch_tokens=128)
    drafts = [tiny_llama(2), tiny_llama(2)]
    before = score(drafts[0], samples).agreement.sum()
    for draft, some in zip(drafts, (samples, blind), strict=True):
        distil(draft, some, learn)
    assert score(drafts[0], samples).agreement.sum() > 1.2 * before
    assert all(torch.equal(one, other) for one, other in zip(*(d.parameters() for d in drafts), strict=True))


def test_cross_entropy_is_forward_kl_of_a_sure_target() -> None:
    logits, tokens = torch.randn(5, 7), torch.tensor([0, 3, 6, 2, 2])
    sure = torch.full((5, 7), -1e4).scatter(1, tokens[:, None], 0.0)
    expected = forward_kl(sure, logits.log_softmax(1))
    torch.testing.assert_close(cross_entropy(logits, tokens), expected, rtol=1e-4, atol=1e-5)


def test_sampling_that_cannot_be_is_refused() -> None:
    with pytest.raises(BadSetting, match=r"learn\.sampling: .*cross_entropy learns the target's own tokens"):
        Settings().changed(learn={"loss": "cross_entropy", "sampling": "mixed"})
    with pytest.raises(BadSetting, match=r"kept with serve\.record_branches = true alone"):
        _require_learnable(Settings().changed(learn={"sampling": "student"}))
    _require_learnable(Settings().changed(learn={"sampling": "student"}, serve={"record_branches": True}))
    assert samples_of(range(2, 9), [3]).branches is None
