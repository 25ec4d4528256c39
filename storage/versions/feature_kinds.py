"""Headers of safetensors files, and which kind of feature draft a folder holds by them and its config.json."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

MEDUSA, EAGLE, EAGLE3 = "medusa", "eagle", "eagle3"
FEATURE_KINDS = (MEDUSA, EAGLE, EAGLE3)
"""Kinds of drafts that read the target's hidden states; the version's ``kind``."""
_MIXING = re.compile(r"^(?:model\.)?fc\.weight$")
"""What stands before an EAGLE draft's layer."""
LARGEST_HEADER = 100_000_000
"""Bytes of a safetensors header, at most."""


def feature_kind(folder: Path) -> str | None:
    """Return the kind of feature draft in a folder; None for any other folder. Published EAGLE folders call themselves
    a Llama of one layer, and are known by the weights that stand before it."""
    facts = read_config(folder)
    named = str(facts.get("architectures")).lower()
    if facts.get("model_type") == MEDUSA or named == "['medusamodel']":
        return MEDUSA
    for kind in (EAGLE3, EAGLE):
        if kind in named:
            return kind
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
    for path in sorted(folder.glob("*.safetensors")):
        with suppress(OSError, ValueError):  # it is none, which whoever loads it says
            for name, facts in read_header(path)[1].items():
                if _MIXING.match(name) and len(facts["shape"]) == 2:
                    return list(facts["shape"])
    return None


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
