"""Reads a draft's folder and checks it against the draft that is loaded, before anything of that is touched."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn

from .digest import weights_digest

Shapes = dict[str, tuple[int, ...]]
SAME = (
    "architectures", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "intermediate_size", "vocab_size", "draft_vocab_size", "tie_word_embeddings", "rope_theta", "rope_parameters",
    "rms_norm_eps", "hidden_act",
)  # fmt: skip
"""Fields of config.json in which a new version must be as the draft that vLLM started with."""


class Refused(ValueError):
    """A folder cannot be loaded; nothing was changed."""


class NotSeen(Refused):
    """This machine does not see what was to be published: that is no fault of the draft's."""


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def shapes(folder: Path) -> Shapes:
    """Return the names and shapes of a folder's tensors."""
    known: Shapes = {}
    for path in _files(folder):
        with safe_open(path, "pt") as file:
            known |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118  (it is no dictionary)
    return known


def read(folder: Path) -> dict[str, torch.Tensor]:
    """Read a folder's tensors."""
    tensors: dict[str, torch.Tensor] = {}
    for path in _files(folder):
        with safe_open(path, "pt") as file:
            tensors |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (it is no dictionary)
    return tensors


def check(folder: Path, sha256: str, config: Any, known: Shapes, shared: Iterable[str]) -> dict[str, torch.Tensor]:
    """Read a folder and check it: its digest, its configuration, names and shapes, finite numbers, and that no tensor
    would be written into a parameter that the target uses too.

    ``config`` is the loaded draft's, ``known`` what the folder had that it was loaded from, ``shared`` the draft's
    parameters that are the target's. Raises Refused.
    """
    if not _files(folder):
        raise NotSeen(f"{folder} holds no .safetensors file that this machine sees")
    if (found := weights_digest(folder)) != sha256:
        raise NotSeen(f"{folder} has the digest {found[:12]}…, and {sha256[:12]}… was to be published")
    _check_config(folder, config)
    tensors = read(folder)
    _check_shapes({name: tuple(tensor.shape) for name, tensor in tensors.items()}, known)
    _check_shared(tensors, shared)
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor.float()).all()):
            raise Refused(f"{name} holds numbers that are not finite")
    return tensors


def _check_config(folder: Path, config: Any) -> None:
    try:
        given = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise Refused(f"config.json cannot be read ({error})") from None
    for field in SAME:
        ours = getattr(config, field, None)
        if field in given and given[field] != ours and ours is not None:
            raise Refused(f"{field} is {given[field]!r}, and the draft that vLLM has loaded has {ours!r}")


def _check_shapes(given: Shapes, known: Shapes) -> None:
    if given == known:
        return
    name = sorted(name for name in given.keys() | known.keys() if given.get(name) != known.get(name))[0]
    raise Refused(
        f"{name} is {given.get(name, 'missing')}, and the draft that vLLM has loaded has {known.get(name, 'none')}"
    )


def _check_shared(tensors: Mapping[str, torch.Tensor], shared: Iterable[str]) -> None:
    """Raise Refused where a tensor's name ends as a shared parameter's does, whatever module is named before."""
    for theirs in shared:
        tail = ".".join(theirs.split(".")[-2:])
        if name := next((name for name in tensors if name.endswith(tail)), None):
            raise Refused(f"{name} would be written into the target's own {theirs}; publish the folder without it")


def shared_parameters(draft: nn.Module, target: nn.Module) -> list[str]:
    """Return the names of the draft's parameters that are the target's by their memory."""
    theirs = {tensor.data_ptr() for tensor in target.parameters() if tensor.numel()}
    return [name for name, tensor in draft.named_parameters() if tensor.numel() and tensor.data_ptr() in theirs]


def put(model: nn.Module, config: Any, tensors: Mapping[str, torch.Tensor]) -> int | None:
    """Load checked tensors into a model between two steps; return how many parameters took them, None where the model
    does not say.

    vLLM's layerwise reload puts values into the storage that kernels and graphs read, repacked where a kernel wants it;
    on a CPU it leaves out the packed copy of a tied output layer, which is packed again here.
    """
    from vllm.model_executor.model_loader.reload.layerwise import finalize_layerwise_reload, initialize_layerwise_reload

    with torch.no_grad():
        initialize_layerwise_reload(model)
        loaded = model.load_weights(iter(tensors.items()))  # type: ignore[operator]
        finalize_layerwise_reload(model, config)
        head = getattr(model, "lm_head", None)
        tied = getattr(config.hf_config, "tie_word_embeddings", False)
        if tied and head is not None and head.weight.device.type == "cpu":
            head.quant_method.process_weights_after_loading(head)
    return None if loaded is None else len(loaded)
