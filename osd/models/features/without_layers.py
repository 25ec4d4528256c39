"""A target's embeddings, final norm and output layer, from its files alone: what a feature draft needs of it where
somebody else computes its layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import AutoConfig, PreTrainedModel

from osd.models.hf_forward import drop_layers
from osd.models.limits import named
from osd.models.model_digest import local_folder
from osd.models.weights import LOAD_LOCK, auto_class, require_finite
from storage.errors import ModelNotLoaded

WRAPPERS = ("model", "language_model", "backbone", "transformer")
"""Parts of a tensor's name that say which module holds the text's, and differ from release to release."""
OLDER = {"embed_out": "lm_head"}
"""Names in files that transformers has others for."""


@torch.no_grad()
def load_without_layers(name: str | Path, device: torch.device, dtype: torch.dtype | None) -> PreTrainedModel:
    """Load a target without its layers: of it there are embeddings, final norm (:func:`final_norm`) and output layer.

    ``dtype`` None: as the files have them. Raises ModelNotLoaded where one of them is quantised, or not known.
    """
    folder = local_folder(str(name))
    if folder is None:
        raise ModelNotLoaded(path=name, reason="Its files are not on this machine.")
    config = AutoConfig.from_pretrained(str(folder), trust_remote_code=False)
    with LOAD_LOCK, torch.device("meta"):
        module = cast(PreTrainedModel, auto_class(config).from_config(config))
    embeddings: Any = module.get_input_embeddings()
    output: Any = module.get_output_embeddings()  # type: ignore[no-untyped-call]
    norm = final_norm(module, name)
    tied = any(named(each, "tie_word_embeddings") for each in (config, config.get_text_config()))
    for part in (embeddings, norm, output):
        _make_buffers(part, module, device, name)
        at = next(path for path, each in module.named_modules() if each is part)
        _fill(part, at, folder, device, dtype, None if part is not output or not tied else embeddings)
    drop_layers(module)
    for part in (embeddings, norm, output):
        require_finite(part, name)
    module.eval()  # type: ignore[no-untyped-call]
    return module


def final_norm(module: PreTrainedModel, name: str | Path = "target") -> nn.Module:
    """Return what stands between a model's last layer and its output layer. Raises ModelNotLoaded."""
    text: Any = module.get_decoder()  # type: ignore[no-untyped-call]
    norms = [part for path, part in text.named_children() if "norm" in path or path == "ln_f"]
    if len(norms) != 1:
        reason = f"Of {type(module).__name__} it is not known what stands between its layers and its output layer."
        raise ModelNotLoaded(path=name, reason=reason)
    found: nn.Module = norms[0]
    return found


def _make_buffers(part: nn.Module, module: Any, device: torch.device, name: str | Path) -> None:
    """Have what a part keeps beside its weights computed, as Gemma's embeddings keep their scale. Raises
    ModelNotLoaded."""
    if not list(part.buffers()):
        return
    part.to_empty(device=device)
    for kept in part.buffers():
        kept.fill_(torch.nan)
    module._init_weights(part)
    if not all(bool(kept.isfinite().all()) for kept in part.buffers()):
        raise ModelNotLoaded(path=name, reason=f"It is not known what its {type(part).__name__} keeps beside weights.")


def _fill(part: nn.Module, at: str, folder: Path, device: torch.device, dtype: torch.dtype | None, tied: Any) -> None:
    """Read a part's weights; where the files have none those that it is ``tied`` to."""
    for own, like in list(part.named_parameters()):
        tensor = _tensor(folder, f"{at}.{own}")
        if tensor is None and tied is not None:
            part.register_parameter(own, tied.weight)
            continue
        if tensor is None or tensor.shape != like.shape or not tensor.is_floating_point():
            reason = f"Its files do not hold {at}.{own} as plain numbers, so its output layer cannot be computed here."
            raise ModelNotLoaded(path=folder, reason=reason)
        part.register_parameter(own, nn.Parameter(tensor.to(device, dtype), requires_grad=False))


def _tensor(folder: Path, name: str) -> Tensor | None:
    """Return a tensor of a folder by its name, whatever module is named before it."""
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for theirs in file.keys():  # noqa: SIM118  (it is no dictionary)
                if _bare(theirs) == _bare(name):
                    found: Tensor = file.get_tensor(theirs)
                    return found
    return None


def _bare(name: str) -> list[str]:
    return [OLDER.get(part, part) for part in name.split(".") if part not in WRAPPERS]
