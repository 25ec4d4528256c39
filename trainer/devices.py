"""The device that a process trains on: what ``trainer.device`` names, or with ``spare`` the GPU with most to spare.

A process stays on the GPU that it has chosen while that has capacity to spare: its models are there, and a CUDA context
that it made on a GPU stays until the process ends. Where CUDA shows no GPU, ``spare`` is the CPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import torch

from osd.models.pair import choose_device
from storage.errors import BadSetting
from storage.settings import TrainerSettings
from storage.settings.trainer import SPARE
from trainer.gpus import Gpu, visible_gpus

OWN_SECONDS = 1.5
"""After this process computed on a GPU, NVML's utilisation is still its own for so long: it averages up to a second."""

Refuse = Callable[[str], str | None]
"""Why the GPU with this UUID cannot be had; None where it can."""


def training_device(settings: TrainerSettings) -> torch.device:
    """Return the device to train on; with ``spare`` where this process is already, else the least used. Raises
    BadSetting as :meth:`SpareGpus.choose`."""
    if settings.device != SPARE:
        return choose_device(settings.device)
    if not torch.cuda.is_available():
        return torch.device("cpu")
    gpu = SPARE_GPUS.here or SPARE_GPUS.choose(settings)[0]
    return choose_device(f"cuda:{gpu.ordinal}")


class SpareGpus:
    """One process's choice among the GPUs that CUDA leaves it."""

    def __init__(self) -> None:
        self.here: Gpu | None = None
        """The GPU that was chosen last."""
        self._computed_at = -OWN_SECONDS

    def choose(self, settings: TrainerSettings, refuse: Refuse = lambda _: None) -> tuple[Gpu, str | None]:
        """Choose a GPU; return it and why it has no capacity to spare, None where it has. Raises BadSetting where NVML
        does not answer, shows none, or CUDA counts otherwise."""
        best, reason = self.best(settings, refuse)
        _require_order(best)
        self.here = best
        return best, reason

    def best(self, settings: TrainerSettings, refuse: Refuse) -> tuple[Gpu, str | None]:
        """Return the GPU with most to spare and what is against it: this process's own before others, then the least
        used. Raises BadSetting."""
        gpus = [self._others_share(gpu) for gpu in visible_gpus()]
        if not gpus:
            raise _bad("trainer.device", "NVML shows none of the GPUs that torch sees; name one: cuda or cuda:N")
        against = {gpu.uuid: why_full(gpu, settings) or refuse(gpu.uuid) for gpu in gpus}
        best = min(gpus, key=lambda gpu: (against[gpu.uuid] is not None, not self._is_here(gpu), gpu.used))
        return best, against[best.uuid]

    def computed(self) -> None:
        """Note that this process computes on its GPU now."""
        self._computed_at = time.monotonic()

    def _is_here(self, gpu: Gpu) -> bool:
        return self.here is not None and gpu.uuid == self.here.uuid

    def _others_share(self, gpu: Gpu) -> Gpu:
        """Leave out what this process itself uses of its GPU."""
        if not self._is_here(gpu):
            return gpu
        own_mb = torch.cuda.memory_reserved(gpu.ordinal) >> 20
        busy = None if time.monotonic() - self._computed_at < OWN_SECONDS else gpu.busy
        return replace(gpu, busy=busy, used_mb=max(0, gpu.used_mb - own_mb), free_mb=gpu.free_mb + own_mb)


SPARE_GPUS = SpareGpus()
"""The choice of this process: a CUDA context, too, is there once a process."""


def why_full(gpu: Gpu, settings: TrainerSettings) -> str | None:
    """Return why a GPU has nothing to spare by itself; None where it has."""
    if gpu.busy is not None and gpu.busy > settings.spare_gpu_busy:
        return f"the GPU is busy {gpu.busy:.0%} of the time"
    if settings.spare_gpu_mb is not None and gpu.free_mb < settings.spare_gpu_mb:
        return f"{gpu.free_mb} MB of the GPU are free"
    return None


def cuda_uuids() -> list[str]:
    """Return the UUIDs of torch's GPUs, by ordinal."""
    return [str(torch.cuda.get_device_properties(n).uuid) for n in range(torch.cuda.device_count())]


def _require_order(gpu: Gpu) -> None:
    """Raise BadSetting where torch has the GPU under another ordinal."""
    uuids = cuda_uuids()
    if gpu.uuid in uuids and uuids.index(gpu.uuid) != gpu.ordinal:
        reason = "CUDA counts the GPUs in another order than the PCI bus; set it to PCI_BUS_ID, or name UUIDs in"
        raise _bad("CUDA_DEVICE_ORDER", f"{reason} CUDA_VISIBLE_DEVICES")


def _bad(key: str, reason: str) -> BadSetting:
    return BadSetting(source="settings", key=key, reason=reason)
