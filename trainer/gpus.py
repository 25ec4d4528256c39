"""The GPUs that CUDA leaves this process, and how much of each is used: by NVML (the extra ``gpu``).

``CUDA_VISIBLE_DEVICES`` names GPUs by index, by UUID or its beginning, or slices of a GPU by MIG id. The first name
that fits nothing ends the list, a name given twice empties it, and its order is that of torch's ``cuda:N``. NVML counts
by PCI bus: so do indices where ``CUDA_DEVICE_ORDER`` is ``PCI_BUS_ID``. Otherwise CUDA counts the fastest first;
whoever goes on with an ordinal asks torch for its UUID (:mod:`trainer.devices`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage.distribution import install_extra
from storage.errors import BadSetting
from storage.settings.learning import SPARE


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU or a slice of one."""

    ordinal: int
    """N of torch's ``cuda:N``, if CUDA counts as NVML does."""
    uuid: str
    """Without ``GPU-`` or ``MIG-``, as torch writes it."""
    busy: float | None
    """Utilisation over the last second at most, 0 to 1; None where the driver tells none, as for MIG slices."""
    used_mb: int
    free_mb: int

    @property
    def used(self) -> float:
        """The larger of utilisation and share of the memory in use, 0 to 1."""
        return max(self.busy or 0.0, self.used_mb / max(1, self.used_mb + self.free_mb))


def device_class(device: str) -> str:
    """Return ``gpu`` or ``cpu`` for a value of ``trainer.device``, without loading torch: by the driver's device files
    where torch is to choose."""
    if device not in ("auto", SPARE):
        return "gpu" if device.startswith("cuda") else "cpu"
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    return "gpu" if not hidden and any(Path("/dev").glob("nvidia[0-9]*")) else "cpu"


def visible_gpus() -> list[Gpu]:
    """Return the GPUs in CUDA's order. Raises BadSetting where NVML's package is not there or it does not answer."""
    try:
        import pynvml as nvml
    except ImportError:
        raise _bad(f"GPUs are looked at by NVML, whose package is missing; {install_extra('gpu')}") from None
    try:
        nvml.nvmlInit()
        handles = _handles(nvml, os.environ.get("CUDA_VISIBLE_DEVICES"))
        return [_read(nvml, ordinal, uuid, handle) for ordinal, (uuid, handle) in enumerate(handles.items())]
    except nvml.NVMLError as error:
        raise _bad(f"NVML does not answer ({error}); mend the driver, or name a device: cpu, cuda or cuda:N") from None


def _handles(nvml: Any, listed: str | None) -> dict[str, Any]:
    """Return NVML's handles by UUID, in CUDA's order, of what ``CUDA_VISIBLE_DEVICES`` lists; None lists all."""
    every = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    by_uuid = {nvml.nvmlDeviceGetUUID(handle): handle for handle in every}
    if listed is None:
        return by_uuid
    found: dict[str, Any] = {}
    for name in listed.split(","):
        handle = _named(nvml, name.strip(), by_uuid)
        if handle is None:
            break
        if (uuid := nvml.nvmlDeviceGetUUID(handle)) in found:
            return {}
        found[uuid] = handle
    return found


def _named(nvml: Any, name: str, by_uuid: dict[str, Any]) -> Any:
    """Return the handle of one name in the list; None where it fits no device."""
    if name.isdigit():
        return dict(enumerate(by_uuid.values())).get(int(name))
    if name.startswith("MIG-"):
        try:
            return nvml.nvmlDeviceGetHandleByUUID(name)
        except nvml.NVMLError:
            return None
    fitting = [handle for uuid, handle in by_uuid.items() if name.startswith("GPU-") and uuid.startswith(name)]
    return fitting[0] if len(fitting) == 1 else None


def _read(nvml: Any, ordinal: int, uuid: str, handle: Any) -> Gpu:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    try:
        busy = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
    except nvml.NVMLError:
        busy = None
    return Gpu(ordinal, uuid.removeprefix("GPU-").removeprefix("MIG-"), busy, memory.used >> 20, memory.free >> 20)


def _bad(reason: str) -> BadSetting:
    return BadSetting(source="settings", key="trainer.device", reason=reason)
