"""What a model's weights take in memory, each byte counted once, beside what its files hold."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from osd.models.features.model import FeatureModel
from osd.models.llama_forward import LlamaForward
from osd.models.llama_forward_compiled import CompiledPass
from osd.models.model import Model


def weights_in_memory(model: Model) -> int:
    """Return the bytes of all that the module and its pass hold of the weights."""
    if isinstance(model, FeatureModel):
        return model.draft.weight_bytes  # what else it needs is the target's
    forward, module, extra = model.build(model.module), model.module, 0
    tensors: list[Tensor] = [*module.parameters(), *module.buffers()]
    if isinstance(forward, LlamaForward):
        tensors += [each for product in forward.products for each in product.tensors]
        extra = forward.compiled.weight_bytes if isinstance(forward.compiled, CompiledPass) else 0
    packed = {id(each): each.numel() * each.element_size() for each in tensors if each.is_mkldnn}
    storages = [each.untyped_storage() for each in tensors if not each.is_mkldnn]
    plain: dict[int, int] = {each.data_ptr(): each.nbytes() for each in storages}
    return extra + sum(packed.values()) + sum(plain.values())


def files_bytes(model: Model) -> int | None:
    """Return the bytes of a model's weight files; None where it came from no folder."""
    folder = Path(model.name)
    if folder.is_file():
        return folder.stat().st_size
    return sum(file.stat().st_size for file in folder.glob("*.safetensors")) if folder.is_dir() else None
