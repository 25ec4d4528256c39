"""Measurement of spare capacity for training: of this machine's engines, its processor and its GPU.

engines     none may be busy in more than ``trainer.spare_busy`` of its samples, nor have more than
``trainer.spare_queue``
            waiting requests (the load report); always met on a machine without engines
processor   share of all cores that other processes use, by psutil; ``trainer.spare_cpu`` at most
GPU         by NVML where it is installed (extra ``gpu``): utilisation and free memory, before a run begins. Within a
            run they would be its own.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from osd.engine.load_report import loads
from storage.settings import TrainerSettings

LOOK_SECONDS = 0.02
"""Maximum age in seconds of a measurement: files are not read more often between two slices."""
CPU_SECONDS = 0.5
"""Minimum seconds over which the processor's share is averaged."""
BUSY_GPU = 0.5
"""Utilisation beyond which the GPU has no capacity to spare."""


class IdleCapacity:
    """One training process's view of its machine."""

    def __init__(self, settings: TrainerSettings, folder: Path, device: str = "cpu") -> None:
        self._settings, self._folder, self._device = settings, folder, device
        self._cpu = OthersShare()
        self._looked_at = -1.0
        self._reason: str | None = None

    def why_not(self) -> str | None:
        """Return why a run may not go on now; None where it may. Cheap enough to call between slices."""
        if not self._settings.spare:
            return None
        if time.monotonic() - self._looked_at >= LOOK_SECONDS:
            self._reason = self._engines() or self._processor()
            self._looked_at = time.monotonic()
        return self._reason

    def why_not_begin(self) -> str | None:
        """Return why no run may begin; None where one may."""
        return self.why_not() or (self._gpu() if self._settings.spare else None)

    def _engines(self) -> str | None:
        for load in loads(self._folder):
            if load.waiting > self._settings.spare_queue:
                return f"{load.waiting} requests wait for a row"
            if load.busy > self._settings.spare_busy:
                return f"an engine is busy {load.busy:.0%} of the time"
        return None

    def _processor(self) -> str | None:
        share = self._cpu.share()
        return f"others take {share:.0%} of the processor" if share > self._settings.spare_cpu else None

    def _gpu(self) -> str | None:
        if not self._device.startswith("cuda") or (found := gpu(self._device)) is None:
            return None
        busy, free_mb = found
        if busy > BUSY_GPU:
            return f"the GPU is busy {busy:.0%} of the time"
        needed = self._settings.spare_gpu_mb
        return f"{free_mb} MB of the GPU are free" if needed is not None and free_mb < needed else None


class OthersShare:
    """The share of all cores that other processes use, 0 to 1."""

    def __init__(self) -> None:
        self._process, self._share = psutil.Process(), 0.0
        self._before = self._now()

    def share(self) -> float:
        """Return the share over at least the last half second; 0 before that."""
        before, now = self._before, self._now()
        if now[0] - before[0] >= CPU_SECONDS:
            self._before = now
            seconds = (now[0] - before[0]) * (psutil.cpu_count() or 1)
            self._share = min(1.0, max(0.0, (now[1] - before[1] - (now[2] - before[2])) / seconds))
        return self._share

    def _now(self) -> tuple[float, float, float]:
        """Return (wall clock, busy time of all cores, CPU time of this process), all in seconds."""
        every, own = psutil.cpu_times(), self._process.cpu_times()
        idle = every.idle + getattr(every, "iowait", 0.0) + getattr(every, "guest", 0.0)
        return time.monotonic(), sum(every) - idle, own.user + own.system


def gpu(device: str) -> tuple[float, int] | None:
    """Return (utilisation 0 to 1, free MB) by NVML; None where that is not installed or does not answer."""
    with suppress(Exception):  # a missing library, driver or permission: each has an error of its own
        import pynvml

        pynvml.nvmlInit()
        handle: Any = pynvml.nvmlDeviceGetHandleByIndex(int(device.partition(":")[2] or 0))
        busy = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
        return float(busy), int(pynvml.nvmlDeviceGetMemoryInfo(handle).free >> 20)
    return None
