"""Models in shards over processes (PyTorch's FSDP2): each holds a part of each weight, gradient and moment."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor


def shard(model: nn.Module, device: torch.device, count: int) -> None:
    """Divide the weights over ``count`` processes, which all call this; layers are gathered one at a time."""
    mesh = init_device_mesh(device.type, (count,))
    layers = set(getattr(model, "_no_split_modules", None) or ())
    for module in list(model.modules()):
        if type(module).__name__ in layers:
            fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)


def whole(tensor: Tensor) -> Tensor:
    """Return all of a tensor, which all processes call for; one that is in no shards as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def placed(tensor: Tensor, parameter: Tensor) -> Tensor:
    """Return a copy of what belongs to a parameter, on its device, and in shards as it is."""
    if isinstance(parameter, DTensor) and tensor.dim():
        return distribute_tensor(tensor, parameter.device_mesh, parameter.placements)
    return tensor.clone().to(parameter.device)


def trained_state(model: nn.Module) -> dict[str, Any]:
    """Return the weights that are trained, whole, on the CPU, by name."""
    named = model.named_parameters()
    return {name: whole(weight.detach()).cpu().clone() for name, weight in named if weight.requires_grad}
