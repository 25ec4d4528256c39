"""Model sizes, read exactly from the headers of safetensors files without loading weights."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path

from storage.errors import ModelFileDamaged

BITS = {"F64": 64, "I64": 64, "F32": 32, "I32": 32, "F16": 16, "BF16": 16, "I16": 16, "I8": 8, "U8": 8, "BOOL": 8}
BITS |= {"F8_E4M3": 8, "F8_E5M2": 8, "U16": 16, "U32": 32, "U64": 64}
LONGEST_HEADER = 100_000_000
"""Bytes of the longest header that the format allows."""


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
        with file.open("rb") as opened:
            (length,) = struct.unpack("<Q", opened.read(8))
            if length > LONGEST_HEADER:
                raise ValueError(f"its header claims {length} bytes")
            header = json.loads(opened.read(length))
        return [
            (math.prod(tensor["shape"]), BITS[tensor["dtype"]])
            for name, tensor in header.items()
            if name != "__metadata__"
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise ModelFileDamaged(
            path=file, what="a safetensors file", reason=f"its header cannot be read ({error})"
        ) from error
