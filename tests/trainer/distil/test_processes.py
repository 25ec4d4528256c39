"""Two processes distil as one does: loss, weights and moments after a step, in float64; and what a dead one leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from storage.errors import TrainingFailed
from storage.records import RequestSamples, RunState
from storage.settings import Settings, load_settings
from storage.store import Store
from tests.support import launch
from tests.support.params import some_of
from tests.trainer.conftest import Traffic
from tests.trainer.models import tiny_llama
from trainer.distil.checkpoints import load_trainable
from trainer.distil.distil import DistilProgress, distil
from trainer.distil.loop import run_once
from trainer.distil.optimizer import adamw, moments_of
from trainer.distil.processes import distil_in_processes
from trainer.distil.step import NotFinite
from trainer.lease import RunControl, ignore

pytestmark = pytest.mark.usefixtures("launched")
TWO = ["cpu", "cpu"]
PER_POSITION = ("positions", "kinds", "drafted", "topk_ids", "topk_logprobs", "outside")
LEARN = {"epochs": 1, "batch_tokens": 4096, "learning_rate": 1e-2, "lora_head_rank": 4, "clip_norm": 1000.0}


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that need not import torch first."""
    monkeypatch.setattr("trainer.distil.processes.Popen", launch.Process)


def unlike(answers: Sequence[RequestSamples]) -> list[RequestSamples]:
    """Requests of 1, 2, 3 … positions, one stored with half the top k: means over requests or processes are not those
    over positions."""
    cut = [replace(s, **{name: getattr(s, name)[:n] for name in PER_POSITION}) for n, s in enumerate(answers, 1)]
    return [*cut[:-1], replace(cut[-1], topk_ids=cut[-1].topk_ids[:, :4], topk_logprobs=cut[-1].topk_logprobs[:, :4])]


def pace(step: Callable[[DistilProgress], None]) -> Any:
    """What lets every step go on."""
    return SimpleNamespace(step=step, keep=lambda: None)


def apart(ones: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> float:
    """The largest difference between the tensors of two runs."""
    return max(float((one - other).abs().max()) for one, other in zip(ones, others, strict=True))


@pytest.mark.parametrize("how", some_of(["whole", "shards", "adapter"], "shards"))
def test_two_processes_take_the_step_that_one_takes(
    drafted: Store, all_answers: list[RequestSamples], how: str
) -> None:
    learn = load_settings(learn={**LEARN, "method": "lora" if how == "adapter" else "full"}).learn
    version, cpu = drafted.versions.current("default"), torch.device("cpu")
    one, two = (load_trainable(drafted, version, learn, cpu).double() for _ in range(2))
    optimizers, told = [adamw(model, learn) for model in (one, two)], []
    asked = unlike(all_answers[:5])
    alone = distil(one, asked, learn, optimizer=optimizers[0])
    together = distil_in_processes(two, asked, learn, optimizers[1], TWO, pace(told.append), shard=how == "shards")
    assert alone.steps == together.steps == len(told) == 1 and together.positions == alone.positions == 15
    assert together.loss_last == pytest.approx(alone.loss_last, rel=0, abs=1e-10)
    trained = [[p.detach() for p in model.parameters() if p.requires_grad] for model in (one, two)]
    moments = [[t for state in moments_of(optimizer) for t in state.values()] for optimizer in optimizers]
    assert trained[0][0].dtype is torch.float64 and apart(*trained) <= 1e-10
    assert apart(*moments) <= 1e-10, "AdamW's first step forgives any multiple of the gradient; its moments do not"


def test_a_run_of_two_processes_is_claimed_judged_and_published_by_one(
    drafted: Store, settings: Settings, traffic: Traffic
) -> None:
    both = settings.trainer.model_copy(update={"processes": 2})
    traffic(12)
    told: list[DistilProgress] = []
    settings = settings.model_copy(update={"trainer": both})
    run = run_once(drafted, settings, "default", "worker", RunControl(watcher=told.append))
    assert run is not None and run.state is RunState.PUBLISHED
    assert [each.step for each in told] == list(range(1, run.result["steps"] + 1))
    assert run.result["loss_last"] < run.result["loss_first"]


def test_where_a_process_dies_the_others_end_its_last_word_is_told_and_the_claim_is_free(
    drafted: Store, settings: Settings, traffic: Traffic, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings.changed(learn={"epochs": 50}, trainer={"processes": 2})
    sent, started, ranks = traffic(8, held_out=False), list[launch.Process](), list[psutil.Process]()

    def start(*arguments: Any, **options: Any) -> launch.Process:
        started.append(launch.Process(*arguments, **options))
        return started[-1]

    def kill(progress: DistilProgress) -> None:
        if progress.step == 2:
            ranks.extend(psutil.Process(started[0].pid).children())
            ranks[1].kill()

    monkeypatch.setattr("trainer.distil.processes.Popen", start)
    with pytest.raises(TrainingFailed, match="process 1 of 2 ended with status -9: no word"):
        run_once(drafted, settings, "default", "worker", RunControl(watcher=kill))
    assert started[0].poll() is not None and not any(rank.is_running() for rank in ranks)
    assert drafted.samples.waiting("default").requests == len(sent)


@pytest.mark.long
def test_numbers_that_are_not_finite_are_told_as_of_one_process(all_answers: list[RequestSamples]) -> None:
    learn, model = load_settings(learn=LEARN).learn, tiny_llama(2)
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    with pytest.raises(NotFinite, match="the loss became nan"):
        distil_in_processes(model, all_answers[:4], learn, adamw(model, learn), TWO, pace(ignore))
