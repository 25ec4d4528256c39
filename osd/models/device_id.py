"""Names of devices that mean the same in every process of a machine."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn


def device_id(device: torch.device) -> str:
    """Return a GPU's UUID, whatever its ordinal is in this process; of other devices the type (``cpu``)."""
    if device.type != "cuda":
        return device.type
    return str(torch.cuda.get_device_properties(device).uuid)


def device_ids(modules: Iterable[nn.Module]) -> tuple[str, ...]:
    """Return the devices that the modules' weights are on, each once."""
    places = {weight.device for module in modules for weight in module.parameters()}
    return tuple(sorted(device_id(place) for place in places if place.type != "meta"))
