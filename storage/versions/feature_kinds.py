"""Headers and sizes of safetensors files, and the kind of feature draft in a folder, by them and its config.json."""

from __future__ import annotations

import json
import math
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage.errors import ModelFileDamaged

MEDUSA, EAGLE, EAGLE3, PEAGLE, DFLASH, MTP = "medusa", "eagle", "eagle3", "peagle", "dflash", "mtp"
FEATURE_KINDS = (MEDUSA, EAGLE, EAGLE3, PEAGLE, DFLASH, MTP)
"""Kinds of drafts that read the target's hidden states; the version's ``kind``."""
AT_ONCE = (MEDUSA, PEAGLE, DFLASH)
"""Those whose tokens do not read each other, so that no acceptance head judges them."""
_MASKS = ("mask_token_id", "pard_token", "ptd_token_id")
"""Fields that name the token of masked columns."""
_MIXING = re.compile(r"^(?:model\.)?fc\.weight$")
"""What stands before an EAGLE draft's layer."""
MTP_NAMES = re.compile(r"^(?:model\.)?mtp(?:_layers)?\.")
"""Names of the MTP heads' tensors in a target's checkpoint."""
LARGEST_HEADER = 100_000_000
"""Bytes of a safetensors header, at most."""
BITS = {"F64": 64, "I64": 64, "F32": 32, "I32": 32, "F16": 16, "BF16": 16, "I16": 16, "I8": 8, "U8": 8, "BOOL": 8}
BITS |= {"F8_E4M3": 8, "F8_E5M2": 8, "U16": 16, "U32": 32, "U64": 64}
"""Bits of each number type."""


def speculative_config(kind: str, model: str | None, tokens: int) -> dict[str, Any]:
    """Return vLLM's ``--speculative-config`` for a draft of this ``kind`` in the folder or repository ``model``, None
    for one that stands in the target's own files, which drafts ``tokens`` tokens."""
    config: dict[str, Any] = {"method": kind if kind in FEATURE_KINDS else "draft_model"}
    if kind == PEAGLE:
        config = {"method": EAGLE3, "parallel_drafting": True}
    return config | ({} if model is None else {"model": model}) | {"num_speculative_tokens": tokens}


def why_no_method(kind: str, method: str | None) -> str | None:
    """Return why a draft of this ``kind`` is not trained by ``method`` (``learn.method``); None where it may be."""
    if kind not in FEATURE_KINDS or method != "lora":
        return None
    return f"a draft of kind {kind} takes no adapter: it has about an adapter's size and is trained whole (full)"


def feature_kind(folder: Path) -> str | None:
    """Return the kind of feature draft in a folder; None for any other folder. Published EAGLE folders call themselves
    a Llama of one layer, and are known by the weights that stand before it."""
    facts = read_config(folder)
    named = str(facts.get("architectures")).lower()
    if facts.get("model_type") == MEDUSA or named == "['medusamodel']":
        return MEDUSA
    named += str(facts.get("speculators_model_type"))
    if DFLASH in named or "dspark" in named:  # what is none of osd's DFlash is refused by name, when it is loaded
        return DFLASH
    if PEAGLE in named or (EAGLE3 in named and any(facts.get(name) is not None for name in _MASKS)):
        return PEAGLE
    for kind in (EAGLE3, EAGLE):
        if kind in named:
            return kind
    if facts.get("num_nextn_predict_layers"):
        names = list(tensor_shapes(folder))
        alone = not any(name.startswith("model.layers.") for name in names)
        return MTP if alone and any(map(MTP_NAMES.match, names)) else None
    shape = _mixing_shape(folder) if facts.get("num_hidden_layers") == 1 else None
    if shape is None:
        return None
    return EAGLE if shape[1] == 2 * shape[0] else EAGLE3


def read_config(folder: Path) -> dict[str, Any]:
    """Return what a folder's config.json says; nothing where there is none that can be read."""
    try:
        found = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _mixing_shape(folder: Path) -> list[int] | None:
    found = (shape for name, shape in tensor_shapes(folder).items() if _MIXING.match(name) and len(shape) == 2)
    return next(found, None)


def tensor_shapes(folder: Path) -> dict[str, list[int]]:
    """Return the shapes of a folder's tensors, by their names; without those of files that cannot be read."""
    shapes: dict[str, list[int]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with suppress(OSError, ValueError):  # it is none, which whoever loads it says
            tensors = read_header(path)[1].items()
            shapes |= {name: list(facts["shape"]) for name, facts in tensors if name != "__metadata__"}
    return shapes


def read_header(path: Path) -> tuple[int, dict[str, Any]]:
    """Return the length of a safetensors file's header, and what it says of the tensors. Raises OSError, and ValueError
    for another file."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > LARGEST_HEADER:
            raise ValueError(f"its header claims {length} bytes")
        try:
            found = json.loads(file.read(length))
        except RecursionError:
            raise ValueError("its header is nested too deep") from None
    if not isinstance(found, dict):
        raise ValueError("its header is no table")
    for name, facts in found.items():
        sizes = facts.get("shape") if isinstance(facts, dict) else None
        if name != "__metadata__" and not (isinstance(sizes, list) and all(type(size) is int for size in sizes)):
            raise ValueError(f"its header gives {name} no shape")
    return length, found


@dataclass(frozen=True, slots=True)
class ModelSize:
    """A model's number of parameters and bytes."""

    parameters: int
    bytes: int
    """Bytes as stored; a server that loads another type moves other amounts."""


def model_size(folder: Path) -> ModelSize | None:
    """Return the size of the safetensors files in a folder; None where there are none. Raises ModelFileDamaged."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        return None
    tensors = [tensor for file in files for tensor in _tensors(file)]
    return ModelSize(sum(count for count, _ in tensors), sum(count * bits for count, bits in tensors) // 8)


def _tensors(file: Path) -> list[tuple[int, int]]:
    """Return (number of elements, bits of each) of every tensor in a file."""
    try:
        header = read_header(file)[1]
        return [
            (math.prod(tensor["shape"]), BITS[tensor["dtype"]])
            for name, tensor in header.items()
            if name != "__metadata__"
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelFileDamaged(
            path=file, what="a safetensors file", reason=f"its header cannot be read ({error})"
        ) from error
