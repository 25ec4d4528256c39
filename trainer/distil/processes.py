"""Distillation by several processes, which accelerate starts, and which one process paces and ends.

That process holds the draft's claim, judges and publishes. It writes model and moments into a temporary folder and has
``accelerate launch`` start a process for each device (:mod:`trainer.distil.rank`). It tells the first of them the
samples, and before each step lets it go on: while that waits all compute nothing, and where this process ends they end.
It takes the weights and moments that result into its own model and optimizer.
"""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import PIPE, Popen
from tempfile import TemporaryDirectory
from typing import IO, Any, Protocol, cast

import torch
from torch import nn

from osd.models.lora.merging import tie
from storage.records import RequestSamples
from storage.settings import LearnSettings, TrainerSettings
from trainer.devices import training_places
from trainer.distil.collate import device_of
from trainer.distil.distil import Distilled, DistilProgress, distil
from trainer.distil.epoch import MicroBatches
from trainer.distil.optimizer import moments_of, resume
from trainer.distil.rank_files import RankTask, pack, read_result, write_task
from trainer.distil.step import NotFinite
from trainer.distil.teacher import Teacher

LOOK_SECONDS = 0.5
"""Seconds between looks whether the run may go on, while a step is computed."""
END_SECONDS = 10.0
"""Seconds in which the processes end when they are told to; then they are killed."""
LAUNCH = (
    "-m", "accelerate.commands.launch", "--multi_gpu", "--num_machines", "1", "--main_process_port", "0",
    "--mixed_precision", "no", "--dynamo_backend", "no",
)  # fmt: skip
"""What accelerate is told: several processes, whatever they compute on; a free port; no wrapping of its own."""


class Pace(Protocol):
    """Who lets training go on, such as a run's lease."""

    def step(self, progress: DistilProgress) -> None:
        """Hear of a step; may wait, and raise to end training."""

    def keep(self) -> None:
        """Called often; may wait and raise, too."""


def distil_on_devices(
    model: nn.Module, samples: Sequence[RequestSamples], learn: LearnSettings, optimizer: torch.optim.AdamW,
    settings: TrainerSettings, pace: Pace, teacher: Teacher | None = None,
) -> Distilled:  # fmt: skip
    """Distil on the devices that the settings name, with a teacher on the first alone. Raises as
    :func:`trainer.distil.distil.distil`, and BadSetting where there are fewer devices than processes."""
    places = training_places(settings)
    if len(places) > 1 and teacher is None:
        return distil_in_processes(model, samples, learn, optimizer, places, pace, shard=settings.shard)
    slices = MicroBatches(settings.slice_ms / 1000, pace.keep) if settings.gives_way else None
    return distil(model, samples, learn, pace.step, optimizer=optimizer, slices=slices, teacher=teacher)


def distil_in_processes(
    model: nn.Module, samples: Sequence[RequestSamples], learn: LearnSettings, optimizer: torch.optim.AdamW,
    places: Sequence[str], pace: Pace, *, shard: bool = False,
) -> Distilled:  # fmt: skip
    """Distil by a process for each of ``places`` (``cpu``, or GPUs' UUIDs); result and errors are those of
    :func:`trainer.distil.distil.distil`. Raises RuntimeError where a process dies.

    The model leaves its device meanwhile. With ``shard`` each process holds a part of the weights; not of an adapter's.
    """
    device = device_of(model)
    with TemporaryDirectory(prefix="osd-distil-") as name:
        folder = Path(name)
        moments = moments_of(optimizer) if optimizer.state else None
        _move(model, torch.device("cpu"))
        write_task(folder, RankTask(model, learn, moments, shard and learn.method == "full"))
        with _launched(folder, places) as launcher:
            done = _conduct(launcher, pack(samples), pace)
        if done is None:
            pace.keep()  # who ended them may have asked this process to stop
            raise RuntimeError(_cause((folder / LOG).read_text(), len(places)))
        weights, moments = read_result(folder)
    _take_over(model, weights)
    _move(model, device)
    resume(optimizer, moments)
    return done


LOG = "log"
"""File of what accelerate and the processes write to stderr."""


@contextmanager
def _launched(folder: Path, places: Sequence[str]) -> Iterator[Popen[str]]:
    """Start the processes, and end them with the context."""
    count, environment = str(len(places)), {}
    if places[0] != "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(f"GPU-{uuid}" for uuid in places)
    rank = "--num_processes", count, "--module", "trainer.distil.rank", str(folder), places[0]
    with (folder / LOG).open("w") as log:
        launcher = Popen(
            [sys.executable, *LAUNCH, *rank], stdin=PIPE, stdout=PIPE, stderr=log, text=True,
            env={**os.environ, **environment}, start_new_session=True,
        )  # fmt: skip  # a session of its own: signals are for this process alone, which ends the others in order
    try:
        yield launcher
    finally:
        launcher.terminate()
        with suppress(subprocess.TimeoutExpired):
            launcher.wait(END_SECONDS)
        launcher.kill()
        with suppress(BrokenPipeError), launcher:  # closes the pipes, and waits
            pass


def _conduct(launcher: Popen[str], samples: str, pace: Pace) -> Distilled | None:
    """Let the processes take step after step; return the result once all have ended, None where one died."""
    with suppress(BrokenPipeError):
        _say(launcher, samples)
        for facts in _lines(launcher, pace):
            if "step" in facts:
                pace.step(DistilProgress(**facts))
                _say(launcher, "go on")
            elif "not_finite" in facts:
                raise NotFinite(facts["not_finite"])
            else:
                launcher.wait()
                return Distilled(**{**facts, "loss_curve": tuple(facts["loss_curve"])})
    launcher.wait()
    return None


def _lines(launcher: Popen[str], pace: Pace) -> Iterator[dict[str, Any]]:
    """Yield what the first process tells, until it ends."""
    told = cast(IO[str], launcher.stdout)
    while True:
        if not select.select([told], [], [], LOOK_SECONDS)[0]:
            pace.keep()
        elif line := told.readline():
            yield json.loads(line)
        else:
            return


def _say(launcher: Popen[str], line: str) -> None:
    print(line, file=launcher.stdin, flush=True)


def _cause(log: str, count: int) -> str:
    """Return why the processes ended, by torch's report of the one that ended first and that one's last word."""
    report = re.search(r"Root Cause.*?rank +: (\d+).*?exitcode +: (-?\d+)", log, re.DOTALL)
    rank, status = report.groups() if report else ("?", "?")
    said = re.findall(rf"^\[rank{re.escape(rank)}\]: (\S.*)$", log, re.MULTILINE) or ["no word"]
    return f"process {rank} of {count} ended with status {status}: {said[-1]}"


def _move(model: nn.Module, device: torch.device) -> None:
    tie(model.to(device))


@torch.no_grad()
def _take_over(model: nn.Module, weights: dict[str, torch.Tensor]) -> None:
    """Put the trained weights into the model."""
    own = dict(model.named_parameters())
    for name, weight in weights.items():
        own[name].copy_(weight)
