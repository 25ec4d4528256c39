"""GGUF checkpoints, whose weights stay in memory as they are in the file.

transformers keeps GGUF's blocks only for some architectures, with kernels that it downloads, and unpacks the others to
floats of four to eight times the size. Here linear layers and embeddings hold their blocks as bytes and unpack, in each
pass, a piece of rows at a time. Names of tensors and what llama.cpp changed of them are transformers' own tables; a
change that only puts rows in another order is made on packed rows, and what cannot stay packed is unpacked once.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.integrations.gguf import dequant

from osd.models.weights import LOAD_ERRORS, LOAD_LOCK, first_line, require_finite
from storage.errors import ModelNotLoaded

SUFFIX = ".gguf"
PIECE = 1 << 22
"""Numbers that are unpacked at a time: 16 MB."""
HALF = {1: torch.float16, 30: torch.bfloat16}
"""GGUF's types that are numbers of two bytes. 0 is float32."""
ENDS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
"""Where a file says which tokens end a text."""


def is_gguf(name: str | Path) -> bool:
    """Return whether a model's name is that of a GGUF file."""
    return str(name).endswith(SUFFIX)


def require_gguf(path: Path) -> None:
    """Check that a file can be read. Raises ModelNotLoaded."""
    if not path.is_file():
        raise ModelNotLoaded(path=path, reason="There is no such file.")
    try:
        import gguf  # noqa: F401
    except ImportError:
        reason = "GGUF files are read by a package that is not installed (pip install gguf)."
        raise ModelNotLoaded(path=path, reason=reason) from None


def unpack(rows: Tensor, kind: int, dtype: torch.dtype) -> Tensor:
    """Return the numbers (n, inputs) of packed rows (n, bytes) of one of GGUF's types."""
    if kind in HALF:
        return rows.to(dtype)
    if kind in dequant.GGML_BLOCK:
        return dequant.dequantize(rows, kind, dtype).view(len(rows), -1)
    from gguf import GGMLQuantizationType, dequantize

    found = dequantize(rows.cpu().numpy(), GGMLQuantizationType(kind))
    return torch.from_numpy(found).to(rows.device, dtype)


class PackedLinear(nn.Module):
    """x ↦ x Wᵀ + b, whose weight (outputs, bytes) is packed."""

    def __init__(self, weight: nn.Parameter, kind: int, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.weight, self.kind, self.bias = weight, kind, bias

    def forward(self, x: Tensor) -> Tensor:
        """Compute (…, inputs) → (…, outputs), unpacking some outputs' weights after others."""
        step = max(1, PIECE // x.shape[-1])
        pieces = [F.linear(x, unpack(rows, self.kind, x.dtype)) for rows in torch.split(self.weight, step)]
        out = pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=-1)
        return out if self.bias is None else out + self.bias


class PackedEmbedding(nn.Module):
    """A table of embeddings whose weight (tokens, bytes) is packed."""

    def __init__(self, weight: nn.Parameter, kind: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight, self.kind, self.dtype = weight, kind, dtype

    def forward(self, tokens: Tensor) -> Tensor:
        """Look tokens (…) up, and return (…, D)."""
        return unpack(self.weight[tokens.flatten()], self.kind, self.dtype).view(*tokens.shape, -1)


def read_gguf(path: Path, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """Load a causal language model from a GGUF file, its weights packed, in evaluation mode. ``dtype``: of what is
    computed. Raises ModelNotLoaded."""
    require_gguf(path)
    try:
        module = _read(path, dtype)
    except (*LOAD_ERRORS, NotImplementedError, IndexError) as error:
        raise ModelNotLoaded(path=path, reason=first_line(error)) from None
    if missing := [name for name, each in module.named_parameters() if each.is_meta]:
        raise ModelNotLoaded(path=path, reason=f"The file lacks {missing[0]}, and {len(missing) - 1} more tensors.")
    require_finite(module, path)
    moved: PreTrainedModel = module.to(device).eval().requires_grad_(False)  # type: ignore[arg-type]
    return moved


def _read(path: Path, dtype: torch.dtype) -> PreTrainedModel:
    from accelerate import init_empty_weights
    from gguf import GGUFReader

    config = AutoConfig.from_pretrained(str(path.parent), gguf_file=path.name)
    reader: Any = GGUFReader(path)
    ends = [int(field.contents()) for name in ENDS if (field := reader.get_field(name))]
    config.eos_token_id = ends or config.eos_token_id
    with LOAD_LOCK, init_empty_weights():
        module: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)  # type: ignore[no-untyped-call]
    for name, weight, kind in _tensors(reader, module, dtype):
        _put(module, name, weight, kind, dtype)
    _tie(module)
    return module


def _tensors(reader: Any, module: PreTrainedModel, dtype: torch.dtype) -> Iterator[tuple[str, Tensor, int]]:
    """Yield the module's names of the file's tensors, with them and their types; 0 for what is no longer packed."""
    from gguf import dequantize
    from transformers import modeling_gguf_pytorch_utils as tables

    architecture = str(reader.get_field("general.architecture").contents())
    config = module.config.to_dict()
    kind: Any = tables.TENSOR_PROCESSORS.get(architecture, tables.TensorProcessor)
    processor = kind(config=config)
    named: Any = tables.get_gguf_hf_weights_map
    names: dict[str, str] = named(module, processor)
    found: dict[str, Any] = {"config": config, "tensors": {}}
    for tensor in reader.tensors:
        order = _order(processor, tensor, names, found) if tensor.tensor_type and tensor.data.ndim == 2 else None
        if order is not None and _holds(module, names[tensor.name]):
            yield names[tensor.name], torch.from_numpy(np.array(tensor.data[order])), int(tensor.tensor_type)
            continue
        weights = dequantize(tensor.data, tensor.tensor_type)
        made = processor.process(weights=weights, name=tensor.name, tensor_key_mapping=names, parsed_parameters=found)
        if made.name in names:
            yield names[made.name], torch.from_numpy(np.array(made.weights)).to(dtype), 0
    for name, weight in found["tensors"].items():  # experts, which transformers puts together
        yield name, torch.as_tensor(weight).to(dtype), 0


def _order(processor: Any, tensor: Any, names: dict[str, str], found: dict[str, Any]) -> Any:
    """Return the order in which a tensor's rows are the module's; None where more than their order differs, or the
    module has no such tensor."""
    rows = np.arange(len(tensor.data), dtype=np.float64).reshape(-1, 1)
    if tensor.name not in names:
        return None
    try:
        made = processor.process(weights=rows, name=tensor.name, tensor_key_mapping=names, parsed_parameters=found)
    except (ValueError, IndexError, KeyError):
        return None
    order = np.asarray(made.weights)
    moved = made.name == tensor.name and order.shape == rows.shape and np.array_equal(np.sort(order, axis=0), rows)
    return order[:, 0].astype(np.int64) if moved else None


def _holds(module: nn.Module, name: str) -> bool:
    """Return whether a weight is that of a layer that has a packed form."""
    owner, _, kind = name.rpartition(".")
    return kind == "weight" and type(module.get_submodule(owner)) in (nn.Linear, nn.Embedding)


def _put(module: nn.Module, name: str, weight: Tensor, kind: int, dtype: torch.dtype) -> None:
    """Put a weight in its place, in the layer's packed form where it is packed."""
    owner, _, own = name.rpartition(".")
    layer: Any = module.get_submodule(owner)
    if not kind:
        setattr(layer, own, nn.Parameter(weight.view(layer.get_parameter(own).shape), requires_grad=False))
        return
    packed = nn.Parameter(weight.view(HALF.get(kind, torch.uint8)), requires_grad=False)
    is_table = isinstance(layer, nn.Embedding)
    made = PackedEmbedding(packed, kind, dtype) if is_table else PackedLinear(packed, kind, layer.bias)
    module.set_submodule(owner, made)


def _tie(module: PreTrainedModel) -> None:
    """Give the output layer the embeddings' weight, where the file has one for both."""
    head: Any = module.get_output_embeddings()  # type: ignore[no-untyped-call]
    table: Any = module.get_input_embeddings()
    if not module.config.tie_word_embeddings:
        return
    if isinstance(table, PackedEmbedding):
        module.set_output_embeddings(PackedLinear(table.weight, table.kind, head.bias))  # type: ignore[no-untyped-call]
    else:
        head.weight = table.weight
