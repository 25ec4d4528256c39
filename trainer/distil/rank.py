"""One of several processes that distil together: ``python -m trainer.distil.rank FOLDER DEVICE``.

:mod:`trainer.distil.processes` starts them. Small drafts are whole in each, and Hugging Face accelerate's DDP averages
their gradients; of a model that does not fit, each holds shards (:mod:`trainer.distil.sharded`). The first process
tells each step as a line of JSON, and all wait for a line before they go on.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from torch import nn

from osd.models.lora.tied import tie
from storage.records import RequestSamples
from trainer.distil.distil import Distilled, DistilProgress, distil
from trainer.distil.optimizer import Moments, adamw, moments_of
from trainer.distil.rank_files import RankTask, read_task, unpack, write_result
from trainer.distil.sharded import shard, trained_state
from trainer.distil.step import Alone, Losses, NotFinite


class Together(Alone):
    """The processes of one group."""

    def __init__(self, accelerator: Accelerator, *, shards: bool) -> None:
        self._accelerator, self._shards = accelerator, shards
        self.count = accelerator.num_processes

    def wrap(self, losses: Losses) -> nn.Module:
        """Return the module under DDP; one in shards averages gradients by itself."""
        wrapped: nn.Module = losses if self._shards else self._accelerator.prepare_model(losses)
        return wrapped

    def share(self, chunk: Sequence[int]) -> tuple[Sequence[int], float]:
        """Return every ``count``-th request; where none is left, one that weighs nothing: all take part in a pass."""
        own = chunk[self._accelerator.process_index :: self.count]
        return (own, 1.0) if own else (chunk[:1], 0.0)

    def total(self, value: float) -> float:
        """Return the sum of the processes' values."""
        own = torch.tensor(value, dtype=torch.float64, device=self._accelerator.device)
        return float(self._accelerator.reduce(own, "sum"))


def main(folder: Path, device: str, out: TextIO) -> None:
    """Take part in the task that lies in the folder, over the samples that are told first; the first process tells
    ``out``, and leaves the result there."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # who started this ends it
    accelerator = _joined(folder, cpu=device == "cpu")
    task, samples = read_task(folder), unpack(sys.stdin.readline())

    def tell(facts: dict[str, Any]) -> None:
        if accelerator.is_main_process:
            print(json.dumps(facts), file=out, flush=True)

    try:
        done, weights, moments = _distil(task, samples, accelerator, tell)
    except NotFinite as error:
        return tell({"not_finite": str(error)})
    if accelerator.is_main_process:
        write_result(folder, weights, moments)
    torch.distributed.destroy_process_group()
    tell(asdict(done))


def _distil(
    task: RankTask, samples: Sequence[RequestSamples], accelerator: Accelerator, tell: Callable[[dict[str, Any]], None]
) -> tuple[Distilled, dict[str, torch.Tensor], Moments]:
    """Distil; return what is told of it, and the weights and moments, whole. Raises NotFinite."""
    if task.shard:
        shard(task.model, accelerator.device, accelerator.num_processes)
    else:
        tie(task.model.to(accelerator.device))
    optimizer = adamw(task.model, task.learn, task.moments)

    def between(progress: DistilProgress) -> None:
        tell(asdict(progress))
        if not sys.stdin.readline():
            sys.exit("who started this has ended")

    together = Together(accelerator, shards=task.shard)
    done = distil(task.model, samples, task.learn, between, optimizer=optimizer, together=together)
    return done, trained_state(task.model), moments_of(optimizer)


def _joined(folder: Path, *, cpu: bool) -> Accelerator:
    """Meet the other processes by a file, so that no port is needed; return accelerate's view of them."""
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if not cpu:
        torch.cuda.set_device(rank)
    meeting = f"file://{folder.absolute()}/meeting"
    torch.distributed.init_process_group("gloo" if cpu else "nccl", init_method=meeting, rank=rank, world_size=count)
    # an expert that no token of a step goes to has no gradient in it
    return Accelerator(cpu=cpu, kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)])


if __name__ == "__main__":
    out, sys.stdout = sys.stdout, sys.stderr  # what libraries print is not for who reads the first process's lines
    main(Path(sys.argv[1]), sys.argv[2], out)
