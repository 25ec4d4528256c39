"""AdamW that goes on: one long training and the same training in two runs are the same training."""

from __future__ import annotations

import math

import pytest
import torch

from storage.settings import LearnSettings, Settings
from storage.store import Store
from tests.trainer.conftest import Traffic
from tests.trainer.distil.test_loop import done
from tests.trainer.models import answers, random_prompts, samples_of, tiny_llama
from trainer.distil.distil import distil
from trainer.distil.loop import run_once
from trainer.distil.optimizer import WARMUP, _fit, adamw, moments_of, resume, scale, steps_done
from trainer.distil.resident import ResidentModels

LEARN = LearnSettings(epochs=1, learning_rate=5e-3, batch_tokens=64)


def weights(keep: bool) -> torch.Tensor:
    """Three passes over the same requests, each in a run of its own; moments kept or not."""
    samples, draft = answers(tiny_llama(1), random_prompts(8)), tiny_llama(2)
    moments = None
    for run in range(3):
        optimizer = adamw(draft, LEARN, moments)
        distil(draft, samples, LEARN.model_copy(update={"seed": run}), schedule="constant", optimizer=optimizer)
        moments = moments_of(optimizer) if keep else None
    return draft.get_output_embeddings().weight.detach()


def test_runs_that_keep_the_moments_are_one_training() -> None:
    samples, draft = answers(tiny_llama(1), random_prompts(8)), tiny_llama(2)
    distil(draft, samples, LEARN.model_copy(update={"epochs": 3}), schedule="constant")
    torch.testing.assert_close(weights(keep=True), draft.get_output_embeddings().weight.detach())
    assert not torch.allclose(weights(keep=False), weights(keep=True), atol=1e-3)


def test_kept_moments_are_copies() -> None:
    draft = tiny_llama()
    optimizer = adamw(draft, LEARN)
    distil(draft, [samples_of(range(2, 12), [5])], LEARN, optimizer=optimizer)
    kept = moments_of(optimizer)
    before = kept[0]["exp_avg"].clone()
    distil(draft, [samples_of(range(2, 12), [7])], LEARN, optimizer=adamw(draft, LEARN, kept))
    assert torch.equal(kept[0]["exp_avg"], before) and kept[0]["step"] == 1


def test_moments_of_other_parameters_are_left_aside() -> None:
    draft, other = tiny_llama(), tiny_llama(vocab=60)
    optimizer = adamw(other, LEARN)
    distil(other, [samples_of(range(2, 12), [5])], LEARN, optimizer=optimizer)
    assert steps_done(optimizer) == 1 and steps_done(adamw(draft, LEARN, moments_of(optimizer))) == 0


def test_parameters_that_got_no_gradient_yet_have_no_moments() -> None:
    """As heads that look farther ahead than any text that was learned from."""
    parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(3)]
    optimizer = torch.optim.AdamW(parameters)
    parameters[1].grad = torch.ones(2)
    optimizer.step()
    kept = moments_of(optimizer)
    later = torch.optim.AdamW(parameters)
    assert _fit(kept, parameters) and not _fit(kept[1:], parameters)
    resume(later, kept)
    for parameter in parameters:
        parameter.grad = torch.ones(2)
    later.step()
    assert [int(later.state[each]["step"]) for each in parameters] == [1, 2, 1] and steps_done(later) == 2


def test_the_step_size_warms_up_once_and_then_stays_or_falls() -> None:
    constant = scale("constant", 0, 100)
    assert [constant(i) for i in (0, WARMUP - 1, 50, 99)] == [1 / WARMUP, 1, 1, 1]
    assert scale("constant", 4, 100)(0) == 5 / WARMUP and scale("constant", 400, 100)(0) == 1
    linear = scale("linear", WARMUP, 100)
    assert (linear(0), linear(50), linear(100)) == (1, pytest.approx(0.55), pytest.approx(0.1))
    cosine = scale("cosine", 0, 100)
    assert cosine(50) == pytest.approx(0.5) and cosine(100) == pytest.approx(0)
    assert cosine(25) == pytest.approx(0.5 * (1 + math.cos(math.pi / 4)))


def test_the_wider_the_draft_the_smaller_its_steps() -> None:
    usual, asked = adamw(tiny_llama(), LearnSettings()), adamw(tiny_llama(), LEARN)
    assert usual.defaults["lr"] == pytest.approx(0.4 / tiny_llama().config.hidden_size)
    assert asked.defaults["lr"] == 5e-3


def test_moments_go_with_the_version_that_they_led_to(drafted: Store, settings: Settings, traffic: Traffic) -> None:
    resident, steps = ResidentModels(), []
    for _ in range(2):
        traffic(12)
        run = done(run_once(drafted, settings, "default", "me", resident=resident))
        moments = resident.memory.recall("default", str(run.version))
        assert moments is not None and resident.memory.recall("default", run.parent) is None
        steps.append((int(moments[0]["step"]), run.result["steps"]))
    assert steps[0][0] == steps[0][1] and steps[1][0] == steps[0][1] + steps[1][1]
    drafted.versions.rollback("default", "an admin said so")
    traffic(12)
    run = done(run_once(drafted, settings, "default", "me", resident=resident))
    fresh = resident.memory.recall("default", str(run.version))
    assert fresh is not None and fresh[0]["step"] == run.result["steps"]
