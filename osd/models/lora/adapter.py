"""LoRA adapters as PEFT writes them, read without PEFT: what each module's output gains.

    y = x Wᵀ + s · (x Aᵀ) Bᵀ         A (r, in), B (out, r), s = α / r (or α / √r)

A folder holds adapter_config.json and adapter_model.safetensors. Which modules it adapts is read from the weights.
What goes beyond that sum (DoRA, biases, whole modules saved beside it) is not read here: NotPlain, and the caller
merges such an adapter into a copy of its base.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from storage.errors import AdapterMismatch, NotPlain, WeightsDamaged

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
BASE_MARK = "osd:"
"""Prefix of the digest of the base's files, where adapter_config.json has room for the base's name."""
_KEY = re.compile(r"base_model\.model\.(.+)\.lora_(embedding_)?([AB])(?:\.weight)?")

Sizes = Mapping[str, tuple[int, int]]
"""Module name → its input and output width (for an embedding: vocabulary and width)."""


@dataclass(frozen=True, slots=True)
class LowRank:
    """The low-rank update of one module's output: (x downᵀ) up."""

    down: Tensor
    """(r, in); for an embedding its transpose, a table (in, r)."""
    up: Tensor
    """(r, out), with the scale s multiplied in."""
    is_table: bool = False
    """Whether it adapts an embedding."""


@dataclass(frozen=True, slots=True)
class LoraSlice:
    """An update of some columns of a site's output.

    Columns ``begin`` … ``begin + out − 1`` gain the site's next r numbers times ``up`` (r, out).
    """

    begin: int
    up: Tensor


@dataclass(frozen=True, slots=True)
class Site:
    """The update at one place of a forward pass: one module's, or those of several that read the same input."""

    down: Tensor
    """(ΣR, in), the pieces' A below one another; for an embedding a table (in, ΣR)."""
    pieces: tuple[LoraSlice, ...]
    is_table: bool = False

    @classmethod
    def of(cls, parts: Sequence[tuple[int, LowRank]], *, is_table: bool = False) -> Site:
        """Join parts, given with the columns where their outputs begin."""
        downs = [part.down for _, part in parts]
        down = downs[0] if len(downs) == 1 else torch.cat(downs, dim=int(is_table))
        return cls(down, tuple(LoraSlice(begin, part.up) for begin, part in parts), is_table)

    @property
    def parts(self) -> list[tuple[int, LowRank]]:
        """The joined parts, with the columns where their outputs begin."""
        ranks = [len(piece.up) for piece in self.pieces]
        downs = torch.split(self.down, ranks, dim=int(self.is_table))
        return [(piece.begin, LowRank(down, piece.up)) for piece, down in zip(self.pieces, downs, strict=True)]

    @property
    def tensors(self) -> list[Tensor]:
        """All weights of the site."""
        return [self.down, *(piece.up for piece in self.pieces)]

    @property
    def bytes(self) -> int:
        """Memory of its weights, in bytes."""
        return sum(t.numel() * t.element_size() for t in self.tensors)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Adapter:
    """One adapter, laid out for a forward pass: site → update there.

    A site is a place in the pass: a module's name, or what :func:`osd.models.llama_forward.lay_out` made of several.
    """

    sites: Mapping[str, Site]

    @property
    def bytes(self) -> int:
        """Memory of its weights, in bytes; what two sites share counts once."""
        tensors = {t.data_ptr(): t for site in self.sites.values() for t in site.tensors}
        return sum(t.numel() * t.element_size() for t in tensors.values())


def sizes_of(module: nn.Module) -> dict[str, tuple[int, int]]:
    """Return the modules that an adapter may be over, with their widths."""
    found: dict[str, tuple[int, int]] = {}
    for name, part in module.named_modules():
        weight = getattr(part, "weight", None)
        if isinstance(weight, Tensor) and weight.dim() == 2:
            wide, narrow = weight.shape
            is_in_first = isinstance(part, nn.Embedding) or type(part).__name__ == "Conv1D"
            found[name] = (wide, narrow) if is_in_first else (narrow, wide)
    return found


def read_adapter(
    folder: Path, version: str, sizes: Sizes, digest: str, device: torch.device, dtype: torch.dtype
) -> dict[str, LowRank]:
    """Read an adapter: module name → its update. ``sizes`` and ``digest`` are those of its base.

    Raises WeightsDamaged when the files do not load, AdapterMismatch for an adapter over other weights, NotPlain.
    """
    try:
        config = json.loads((folder / CONFIG).read_text("utf-8"))
        tensors = load_file(folder / WEIGHTS)
    except (OSError, ValueError, SafetensorError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise WeightsDamaged(version=version, reason=f"they do not load: {reason}") from None
    _require_base(config, version, digest)
    pairs, tables = _pairs(config, tensors, version)
    parts = {}
    for name, pair in pairs.items():
        if set(pair) != {"A", "B"}:
            raise WeightsDamaged(version=version, reason=f"{name} has only one of its two factors")
        _require_fit(name, pair["A"].shape, pair["B"].shape, sizes, version)
        up = (pair["B"].float() * scale_of(config, name, pair["B"].shape[1])).t()
        down, up = (part.to(device, dtype).contiguous() for part in (pair["A"], up))
        parts[name] = LowRank(down, up, is_table=name in tables)
    for table in tables:
        for name in _tied_to(table, pairs, config):  # views of the embeddings' memory: down = (s B)ᵀ, up = A
            parts[name] = LowRank(parts[table].up, parts[table].down.t())
    return parts


def _tied_to(table: str, pairs: Mapping[str, Mapping[str, Tensor]], config: Mapping[str, Any]) -> list[str]:
    """Return output layers whose factors are the embeddings' own, as those of tied weights are."""
    first, second = pairs[table]["A"], pairs[table]["B"].t()
    scale = scale_of(config, table, len(second))
    return [
        name
        for name, pair in pairs.items()
        if torch.equal(pair["B"], first) and torch.equal(pair["A"], second)
        and scale_of(config, name, len(second)) == scale
    ]  # fmt: skip


def _require_base(config: Mapping[str, Any], version: str, digest: str) -> None:
    named = str(config.get("base_model_name_or_path") or "")
    if named.startswith(BASE_MARK) and named != BASE_MARK + digest:
        theirs = named.removeprefix(BASE_MARK)[:8]
        raise AdapterMismatch(version=version, reason=f"it was trained over weights {theirs}…, these are {digest[:8]}…")


def _pairs(
    config: Mapping[str, Any], tensors: Mapping[str, Tensor], version: str
) -> tuple[dict[str, dict[str, Tensor]], set[str]]:
    """Return module name → its A (an embedding's turned into a table (in, r)) and B; and which of them are
    embeddings."""
    if config.get("peft_type") != "LORA" or config.get("use_dora") or config.get("bias", "none") != "none":
        raise NotPlain(version=version, reason="it is no LoRA, or has DoRA's magnitudes or biases")
    pairs: dict[str, dict[str, Tensor]] = {}
    tables = set()
    for key, tensor in tensors.items():
        match = _KEY.fullmatch(key)
        if match is None:
            raise NotPlain(version=version, reason=f"it has {key}")
        name, is_embedding, factor = match.groups()
        pairs.setdefault(name, {})[factor] = tensor.t() if is_embedding and factor == "A" else tensor
        if is_embedding:
            tables.add(name)
    return pairs, tables


def _require_fit(name: str, down: torch.Size, up: torch.Size, sizes: Sizes, version: str) -> None:
    if name not in sizes:
        raise AdapterMismatch(version=version, reason=f"it adapts {name}, which the base has not")
    wide, narrow = (size for size in sizes[name])
    if (down[1], up[0]) != (wide, narrow) and (down[0], up[0]) != (wide, narrow):
        reason = f"at {name} it takes {down[1]} numbers to {up[0]}, and the base {wide} to {narrow}"
        raise AdapterMismatch(version=version, reason=reason)


def scale_of(config: Mapping[str, Any], name: str, rank: int) -> float:
    """Return the scale s of a module. PEFT's ``alpha_pattern`` names modules by the end of their path, as a regular
    expression."""
    alpha = float(config["lora_alpha"])
    for pattern, value in (config.get("alpha_pattern") or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", name):
            alpha = float(value)
            break
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
