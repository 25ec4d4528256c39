"""The device that a process trains on: what ``trainer.device`` names, or with ``spare`` the GPU with most to spare.

A process stays on the GPU that it has chosen while that has capacity to spare: its models are there, and a CUDA context
that it made on a GPU stays until the process ends. Where CUDA shows no GPU, ``spare`` is the CPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import torch

from osd.models.device_timer import device_id
from osd.models.pair import choose_device
from storage.errors import BadSetting
from storage.settings import TrainerSettings
from storage.settings.learning import SPARE
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
    if not SPARE_GPUS.places:
        SPARE_GPUS.choose(settings)
    return choose_device(f"cuda:{SPARE_GPUS.places[0].ordinal}")


def training_places(settings: TrainerSettings) -> list[str]:
    """Return a device for each process that distils: ``cpu``, or a GPU's UUID, :func:`training_device`'s first.

    With ``spare`` there may be fewer than ``trainer.processes``: as many as have capacity. Raises BadSetting where CUDA
    shows fewer.
    """
    device = training_device(settings)
    if device.type != "cuda" or settings.processes == 1:
        return [device_id(device)] * settings.processes
    if settings.device == SPARE:
        return [gpu.uuid for gpu in SPARE_GPUS.places]
    found = cuda_uuids()[device.index or 0 :][: settings.processes]
    if len(found) < settings.processes:
        reason = f"it is {settings.processes}, and CUDA shows {len(found)} GPUs from {device} on; set so many"
        raise _bad("trainer.processes", reason)
    return found


class SpareGpus:
    """One process's choice among the GPUs that CUDA leaves it."""

    def __init__(self) -> None:
        self.places: list[Gpu] = []
        """The GPUs that were chosen last, one for each process that distils; this process itself uses the first."""
        self._computed_at = -OWN_SECONDS

    def choose(self, settings: TrainerSettings, refuse: Refuse = lambda _: None) -> str | None:
        """Choose GPUs, and return why they have no capacity to spare; None where they have. Raises BadSetting where
        NVML does not answer, shows none, or CUDA counts otherwise."""
        places, reason = self.least_used(settings, refuse)
        _require_order(places)
        self.places = places
        return reason

    def least_used(self, settings: TrainerSettings, refuse: Refuse) -> tuple[list[Gpu], str | None]:
        """Return the GPUs with most to spare, and what is against them: this process's own before others, then the
        least used. Raises BadSetting."""
        gpus = [self._others_share(gpu) for gpu in visible_gpus()]
        if not gpus:
            raise _bad("trainer.device", "NVML shows none of the GPUs that torch sees; name one: cuda or cuda:N")
        against = {gpu.uuid: why_full(gpu, settings) or refuse(gpu.uuid) for gpu in gpus}
        gpus.sort(key=lambda gpu: (against[gpu.uuid] is not None, not self._is_here(gpu), gpu.used))
        free = [gpu for gpu in gpus if against[gpu.uuid] is None]
        if free and settings.shard and len(free) < settings.processes:
            return gpus[:1], f"{len(free)} of the {settings.processes} GPUs that a sharded draft needs can be had"
        return (free or gpus[:1])[: settings.processes], against[gpus[0].uuid]

    def computed(self) -> None:
        """Note that this process computes on its GPU now."""
        self._computed_at = time.monotonic()

    def _is_here(self, gpu: Gpu) -> bool:
        return bool(self.places) and gpu.uuid == self.places[0].uuid

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


def _require_order(places: list[Gpu]) -> None:
    """Raise BadSetting where torch has one of the GPUs under another ordinal."""
    uuids = cuda_uuids()
    if any(gpu.uuid in uuids and uuids.index(gpu.uuid) != gpu.ordinal for gpu in places):
        reason = "CUDA counts the GPUs in another order than the PCI bus; set it to PCI_BUS_ID, or name UUIDs in"
        raise _bad("CUDA_DEVICE_ORDER", f"{reason} CUDA_VISIBLE_DEVICES")


def _bad(key: str, reason: str) -> BadSetting:
    return BadSetting(source="settings", key=key, reason=reason)
