"""Training really moves the draft towards the target, by every loss, and stops when it is told to."""

from __future__ import annotations

import pytest
import torch

from storage.records import TokenKind
from storage.settings import LearnSettings
from tests.trainer.models import answers, random_prompts, samples_of, tiny_llama
from trainer.distil.distil import CURVE, DistilProgress, distil, loss_curve
from trainer.distil.scores import score
from trainer.distil.step import NotFinite


@pytest.mark.parametrize("loss", ["forward_kl", "reverse_kl", "jsd", "total_variation"])
def test_every_loss_raises_acceptance(loss: str) -> None:
    samples = answers(tiny_llama(1), random_prompts(12))
    draft = tiny_llama(2)
    before = score(draft, samples)
    done = distil(draft, samples, LearnSettings(loss=loss, epochs=20, learning_rate=5e-3, batch_tokens=128))  # type: ignore[arg-type]
    after = score(draft, samples)
    assert done.loss_last < done.loss_first
    assert after.expected.sum() > 1.2 * before.expected.sum()


def test_the_same_seed_gives_the_same_weights_and_another_does_not() -> None:
    samples = answers(tiny_llama(1), random_prompts(8))

    def weights(seed: int) -> torch.Tensor:
        draft = tiny_llama(2)
        distil(draft, samples, LearnSettings(seed=seed, batch_tokens=32))
        return draft.get_output_embeddings().weight.detach()

    assert torch.equal(weights(1), weights(1)) and not torch.equal(weights(1), weights(2))


def test_only_the_chosen_positions_count() -> None:
    kinds = [TokenKind.ACCEPTED, TokenKind.REJECTED, TokenKind.UNDRAFTED, TokenKind.REJECTED]
    s = samples_of(range(2, 12), [3, 4, 5, 6], kinds=kinds)
    nothing = samples_of(range(2, 12), [3], kinds=[TokenKind.ACCEPTED])
    done = distil(tiny_llama(), [s, nothing], LearnSettings(positions="rejected", epochs=3))
    assert (done.requests, done.positions) == (1, 6)


def test_progress_is_told_between_batches_and_an_exception_there_ends_it() -> None:
    told: list[DistilProgress] = []

    def between(progress: DistilProgress) -> None:
        told.append(progress)
        if len(told) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        distil(tiny_llama(), [samples_of(range(2, 30), [20])] * 8, LearnSettings(batch_tokens=30), between)
    assert [p.step for p in told] == [1, 2, 3] and told[0].steps == 24 and told[0].positions_per_second > 0


def test_a_loss_that_is_no_number_ends_it() -> None:
    draft = tiny_llama()
    with torch.no_grad():
        draft.get_output_embeddings().weight[5] = torch.nan
    with pytest.raises(NotFinite):
        distil(draft, [samples_of(range(2, 12), [3])], LearnSettings())


def test_frozen_parameters_do_not_move() -> None:
    draft = tiny_llama()
    draft.get_input_embeddings().weight.requires_grad_(False)
    before = draft.get_input_embeddings().weight.clone()
    distil(draft, [samples_of(range(2, 12), [3, 6])], LearnSettings(weight_decay=0.1))
    assert torch.equal(before, draft.get_input_embeddings().weight)


def test_the_loss_curve_is_means_over_stretches() -> None:
    assert loss_curve([]) == () and loss_curve([3.0]) == (3.0,)
    assert loss_curve([4.0, 2.0, 1.0], points=8) == (4.0, 2.0, 1.0)
    assert loss_curve([1.0, 3.0, 5.0, 7.0, 9.0, 11.0], points=3) == (2.0, 6.0, 10.0)
    assert len(loss_curve([0.5] * 1001)) == CURVE and set(loss_curve([0.5] * 1001)) == {0.5}
