"""One of several processes that distil together: ``accelerate launch -m trainer.distil.rank FOLDER DEVICE``.

:mod:`trainer.distil.processes` has them started. Small drafts are whole in each, and accelerate's DDP averages their
gradients; of a model that does not fit, each holds shards (PyTorch's FSDP2): a part of each weight, gradient and
moment. The first process tells each step as a line of JSON, and waits for a line before all go on.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any, TextIO

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from osd.models.lora.merging import tie
from storage.records import RequestSamples
from trainer.distil.distil import Distilled, DistilProgress, distil
from trainer.distil.optimizer import Moments, adamw, moments_of, whole
from trainer.distil.rank_files import RankTask, read_task, unpack, write_result
from trainer.distil.step import Alone, Losses, NotFinite

PATIENCE = timedelta(days=365)
"""A run may be paused for so long; torch gives up after minutes."""


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
    # an expert that no token of a step goes to has no gradient in it
    ddp = DistributedDataParallelKwargs(find_unused_parameters=True)
    accelerator = Accelerator(cpu=device == "cpu", kwargs_handlers=[ddp])
    heard = Heard(accelerator.is_main_process)
    task, samples = read_task(folder), unpack(heard.line())

    def tell(facts: dict[str, Any]) -> None:
        if accelerator.is_main_process:
            print(json.dumps(facts), file=out, flush=True)

    def between(progress: DistilProgress) -> None:
        tell(asdict(progress))
        heard.line()

    try:
        done, weights, moments = _distil(task, samples, accelerator, between)
    except NotFinite as error:
        return tell({"not_finite": str(error)})
    if accelerator.is_main_process:
        write_result(folder, weights, moments)
    torch.distributed.destroy_process_group()
    tell(asdict(done))


class Heard:
    """What the first process is told, for all. Those that wait for it do not keep a GPU busy."""

    def __init__(self, is_first: bool) -> None:
        self._is_first = is_first
        self._group = torch.distributed.new_group(backend="gloo", timeout=PATIENCE)

    def line(self) -> str:
        """Return the next line. Ends this process where there is none: who had it started has ended."""
        own = sys.stdin.readline().encode() if self._is_first else b""
        size = torch.tensor(len(own))
        torch.distributed.broadcast(size, 0, group=self._group)
        if not size:
            sys.exit("who started this has ended")
        data = torch.tensor(list(own), dtype=torch.uint8) if own else torch.empty(int(size), dtype=torch.uint8)
        torch.distributed.broadcast(data, 0, group=self._group)
        return data.numpy().tobytes().decode()


def _distil(
    task: RankTask, samples: Sequence[RequestSamples], accelerator: Accelerator,
    between: Callable[[DistilProgress], None],
) -> tuple[Distilled, dict[str, torch.Tensor], Moments]:  # fmt: skip
    """Distil; return what is told of it, and the weights and moments, whole. Raises NotFinite."""
    if task.shard:
        _shard(task.model, accelerator)
    else:
        tie(task.model.to(accelerator.device))
    optimizer = adamw(task.model, task.learn, task.moments)
    together = Together(accelerator, shards=task.shard)
    done = distil(task.model, samples, task.learn, between, optimizer=optimizer, together=together)
    trained = {name: whole(p.detach()).cpu().clone() for name, p in task.model.named_parameters() if p.requires_grad}
    return done, trained, moments_of(optimizer)


def _shard(model: nn.Module, accelerator: Accelerator) -> None:
    """Divide the weights over the processes, which all call this; layers are gathered one at a time."""
    mesh = init_device_mesh(accelerator.device.type, (accelerator.num_processes,))
    layers = set(getattr(model, "_no_split_modules", None) or ())
    for module in list(model.modules()):
        if type(module).__name__ in layers:
            fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)


if __name__ == "__main__":
    out, sys.stdout = sys.stdout, sys.stderr  # what libraries print is not for who reads the first process's lines
    main(Path(sys.argv[1]), sys.argv[2], out)
