"""A stand-in for the module ``pynvml``: GPUs by PCI bus, each with its utilisation and memory."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace


class NVMLError(Exception):
    """An error of NVML."""


@dataclass
class FakeGpu:
    """A card, or a slice of one where ``busy`` is None."""

    uuid: str
    busy: int | None = 0
    """Per cent."""
    used_mb: int = 0
    total_mb: int = 80_000


class FakeNvml:
    """The functions that osd calls, over ``gpus``; slices are found by their UUID alone."""

    NVMLError = NVMLError

    def __init__(self, *gpus: FakeGpu, slices: tuple[FakeGpu, ...] = (), broken: bool = False) -> None:
        self.gpus, self.slices, self.broken = gpus, slices, broken

    def nvmlInit(self) -> None:
        if self.broken:
            raise NVMLError("Driver Not Loaded")

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeGpu:
        for gpu in (*self.gpus, *self.slices):
            if gpu.uuid == uuid:
                return gpu
        raise NVMLError("Not Found")

    def nvmlDeviceGetUUID(self, handle: FakeGpu) -> str:
        return handle.uuid

    def nvmlDeviceGetMemoryInfo(self, handle: FakeGpu) -> SimpleNamespace:
        return SimpleNamespace(used=handle.used_mb << 20, free=(handle.total_mb - handle.used_mb) << 20)

    def nvmlDeviceGetUtilizationRates(self, handle: FakeGpu) -> SimpleNamespace:
        if handle.busy is None:
            raise NVMLError("Not Supported")
        return SimpleNamespace(gpu=handle.busy)
