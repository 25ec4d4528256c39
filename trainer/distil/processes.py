"""Distillation by several processes, which one process starts, paces and ends.

That process holds the draft's claim, judges and publishes. It writes model and moments into a temporary folder, starts
a process for each device (:mod:`trainer.distil.rank`), tells it the samples, and before each step lets all begin it:
while it waits, they compute nothing, and where it ends they end. It takes the weights and moments that result into its
own model and optimizer.
"""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import PIPE, Popen, TimeoutExpired
from tempfile import TemporaryDirectory
from typing import IO, Any, cast

import torch
from torch import nn

from osd.models.lora.tied import tie
from storage.records import RequestSamples
from storage.settings import LearnSettings, TrainerSettings
from trainer.devices import training_places
from trainer.distil.collate import device_of
from trainer.distil.distil import Between, Distilled, DistilProgress, distil
from trainer.distil.microbatches import MicroBatches
from trainer.distil.optimizer import moments_of, resume
from trainer.distil.rank_files import RankTask, pack, read_result, write_task
from trainer.distil.step import NotFinite
from trainer.distil.teacher import Teacher

LOOK_SECONDS = 0.5
"""Seconds between looks whether the processes live, while a step is computed."""


def distil_as_set(
    model: nn.Module, samples: Sequence[RequestSamples], learn: LearnSettings, between: Between,
    optimizer: torch.optim.AdamW, settings: TrainerSettings, keep: Callable[[], None], teacher: Teacher | None = None,
) -> Distilled:  # fmt: skip
    """Distil on the devices that the settings name, with a teacher on the first alone; ``keep`` is called often. Raises
    as :func:`trainer.distil.distil.distil`, and BadSetting where there are fewer devices than processes."""
    places = training_places(settings)
    if len(places) > 1 and teacher is None:
        return distil_in_processes(model, samples, learn, between, optimizer, places, shard=settings.shard, keep=keep)
    slices = MicroBatches(settings.slice_ms / 1000, keep) if settings.gives_way else None
    return distil(model, samples, learn, between, optimizer=optimizer, slices=slices, teacher=teacher)


def distil_in_processes(
    model: nn.Module, samples: Sequence[RequestSamples], learn: LearnSettings, between: Between,
    optimizer: torch.optim.AdamW, places: Sequence[str], *, shard: bool = False,
    keep: Callable[[], None] = lambda: None,
) -> Distilled:  # fmt: skip
    """Distil by a process for each of ``places`` (``cpu``, or GPUs' UUIDs); arguments, result and errors are those of
    :func:`trainer.distil.distil.distil`. Raises RuntimeError where a process dies.

    The model leaves its device meanwhile. With ``shard`` each process holds a part of the weights; not of an adapter's.
    """
    device = device_of(model)
    with TemporaryDirectory(prefix="osd-distil-") as name:
        folder = Path(name)
        moments = moments_of(optimizer) if optimizer.state else None
        _move(model, torch.device("cpu"))
        write_task(folder, RankTask(model, learn, moments, shard and learn.method == "full"))
        with _started(folder, places) as ranks:
            ranks.say(pack(samples))
            done = ranks.conduct(between, keep)
        weights, moments = read_result(folder)
    _take_over(model, weights)
    _move(model, device)
    resume(optimizer, moments)
    return done


class _Ranks:
    """The processes; the first tells how far they are."""

    def __init__(self, processes: Sequence[Popen[str]], folder: Path) -> None:
        self._processes, self._folder = processes, folder

    def conduct(self, between: Between, keep: Callable[[], None]) -> Distilled:
        """Let them take step after step; return the result once all have ended."""
        for told in self._lines(keep):
            if "step" in told:
                between(DistilProgress(**told))
                self.say("go on")
            elif "not_finite" in told:
                raise NotFinite(told["not_finite"])
            else:
                for process in self._processes:
                    process.wait()
                return Distilled(**{**told, "loss_curve": tuple(told["loss_curve"])})
        raise RuntimeError(self._cause())

    def _lines(self, keep: Callable[[], None]) -> Iterator[dict[str, Any]]:
        """Yield what the first tells, until one of them ends."""
        told = cast(IO[str], self._processes[0].stdout)
        while True:
            if select.select([told], [], [], LOOK_SECONDS)[0]:
                if not (line := told.readline()):
                    return
                yield json.loads(line)
            elif any(process.poll() for process in self._processes):
                return
            else:
                keep()

    def say(self, line: str) -> None:
        """Say something to all of them. Raises RuntimeError where one has ended."""
        try:
            for process in self._processes:
                print(line, file=process.stdin, flush=True)
        except BrokenPipeError:
            raise RuntimeError(self._cause()) from None

    def _cause(self) -> str:
        """Return why a process ended, from the last line of the one that ended first."""
        for rank, process in enumerate(self._processes):
            try:
                status = process.wait(LOOK_SECONDS)
            except TimeoutExpired:
                continue
            said = log_file(self._folder, rank).read_text().strip().splitlines() or ["no word"]
            return f"process {rank} of {len(self._processes)} ended with status {status}: {said[-1]}"
        return "a process ended"


@contextmanager
def _started(folder: Path, places: Sequence[str]) -> Iterator[_Ranks]:
    """Start the processes, and end them with the context."""
    processes = [_start(folder, places, rank) for rank in range(len(places))]
    try:
        yield _Ranks(processes, folder)
    finally:
        for process in processes:
            process.kill()
            with suppress(BrokenPipeError), process:  # closes the pipes, and waits
                pass


def _start(folder: Path, places: Sequence[str], rank: int) -> Popen[str]:
    """Start one process, as torchrun would."""
    count = str(len(places))
    environment = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
    if places[0] != "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(f"GPU-{uuid}" for uuid in places)
    with log_file(folder, rank).open("w") as log:
        return Popen(
            [sys.executable, "-m", "trainer.distil.rank", str(folder), places[0]],
            stdin=PIPE, stdout=PIPE, stderr=log, text=True, env={**os.environ, **environment},
        )  # fmt: skip


def log_file(folder: Path, rank: int) -> Path:
    """Return the file of a process's errors."""
    return folder / f"{rank}.log"


def _move(model: nn.Module, device: torch.device) -> None:
    tie(model.to(device))


@torch.no_grad()
def _take_over(model: nn.Module, weights: dict[str, torch.Tensor]) -> None:
    """Put the trained weights into the model."""
    own = dict(model.named_parameters())
    for name, weight in weights.items():
        own[name].copy_(weight)
