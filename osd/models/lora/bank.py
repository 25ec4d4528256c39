"""Rows with different adapters in one pass over the weights that they share.

All A of the adapters that a pass's rows use are stacked below one another and all B beside one another; a row's
mask zeroes the columns that are not its own:

    y = x Wᵀ + ((x [A₁; A₂; …]ᵀ) ∘ mask) [s₁ B₁ᵀ; s₂ B₂ᵀ; …]

A site takes few products, however many adapters there are, and ranks may differ. A row without an adapter has a
mask of 0. Where modules that read the same input are one product of the pass (q, k and v), so are their A.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from osd.models.lora.adapter import Adapter, LowRank, Site


@dataclass(frozen=True, slots=True)
class LoraStep:
    """What a pass computes at one site."""

    down: Tensor
    mask: Tensor | None
    """(B, 1, ΣR); None where all rows have one adapter."""
    pieces: list[tuple[slice, slice, Tensor]]
    """Slices of the ΣR numbers and of the output, and the ``up`` between them."""

    @classmethod
    def of(cls, site: Site, mask: Tensor | None) -> LoraStep:
        """Make the step for a site; all rows compute the same, up to the mask."""
        pieces, at = [], 0
        for piece in site.pieces:
            rank, width = piece.up.shape
            pieces.append((slice(at, at + rank), slice(piece.begin, piece.begin + width), piece.up))
            at += rank
        return cls(site.down, mask, pieces)


class AdapterBatch:
    """Adapter updates for one pass, by site."""

    def __init__(self, steps: Mapping[str, LoraStep]) -> None:
        self._steps = steps

    @property
    def sites(self) -> Sequence[str]:
        """The sites that have an update."""
        return list(self._steps)

    def add(self, site: str, x: Tensor, y: Tensor) -> Tensor:
        """Add the rows' updates of ``x`` (B, T, in) to ``y`` (B, T, out) in place; return ``y``."""
        step = self._steps.get(site)
        if step is not None:
            _into(y, F.linear(x, step.down), step)
        return y

    def embed(self, site: str, tokens: Tensor, y: Tensor) -> Tensor:
        """Add the rows' updates of an embedding of tokens (B, T) to ``y`` in place; return ``y``."""
        step = self._steps.get(site)
        if step is not None:
            _into(y, F.embedding(tokens, step.down), step)
        return y


def _into(y: Tensor, hidden: Tensor, step: LoraStep) -> None:
    if step.mask is not None:  # rows are the leading dimension, also where a module flattens them
        hidden = (hidden.view(len(step.mask), -1, hidden.shape[-1]) * step.mask).view(hidden.shape)
    hidden, lines = hidden.view(-1, hidden.shape[-1]), y.view(-1, y.shape[-1])
    if len(step.pieces) == 1 and step.pieces[0][2].shape[1] == lines.shape[1]:
        lines.addmm_(hidden, step.pieces[0][2])
        return
    for ranks, columns, up in step.pieces:
        lines[:, columns].addmm_(hidden[:, ranks], up)


class AdapterRows:
    """The adapters of a cache's rows, and the mixes for passes over them."""

    def __init__(self) -> None:
        self._rows: list[Adapter | None] = []
        self._mixes: dict[tuple[int, int], AdapterBatch | None] = {}
        self._stack: tuple[list[Adapter], dict[str, Site]] = ([], {})

    def set_rows(self, rows: Sequence[Adapter | None]) -> bool:
        """Set each row's adapter from now on; return whether any has one."""
        self._rows = list(rows)
        self._mixes.clear()
        used = list(dict.fromkeys(adapter for adapter in rows if adapter is not None))
        if set(used) != set(self._stack[0]):  # rows come and go; putting adapters together copies them
            self._stack = (used, stack(used) if len(used) > 1 else {})
        return bool(used)

    def mix(self, first: int, count: int) -> AdapterBatch | None:
        """Return the updates for rows ``first`` … ``first + count − 1``; None where none of them has an adapter."""
        key = first, count
        if key not in self._mixes:
            self._mixes[key] = self._make(self._rows[first : first + count])
        return self._mixes[key]

    @property
    def bytes(self) -> int:
        """Memory of stacked copies, in bytes: adapters that share a pass are there a second time."""
        return sum(site.bytes for site in self._stack[1].values())

    def _make(self, rows: Sequence[Adapter | None]) -> AdapterBatch | None:
        used = set(rows)
        if used == {None}:
            return None
        if len(used) == 1 and (only := rows[0]) is not None:
            return AdapterBatch({name: LoraStep.of(site, None) for name, site in only.sites.items()})
        known = self._stack[0]
        sites = self._stack[1] if len(known) > 1 else known[0].sites
        return AdapterBatch(
            {name: LoraStep.of(site, mask_of(name, known, rows, site.down)) for name, site in sites.items()}
        )


def stack(adapters: Sequence[Adapter]) -> dict[str, Site]:
    """Stack adapters beside one another, at every site that one of them has: by output, then by adapter."""
    names = dict.fromkeys(name for adapter in adapters for name in adapter.sites)
    return {name: _stack([adapter.sites[name] for adapter in adapters if name in adapter.sites]) for name in names}


def _stack(sites: Sequence[Site]) -> Site:
    by_output: dict[int, list[LowRank]] = {}
    for site in sites:
        for begin, part in site.parts:
            by_output.setdefault(begin, []).append(part)
    is_table = sites[0].is_table
    joined = {
        begin: LowRank(torch.cat([p.down for p in parts], dim=int(is_table)), torch.cat([p.up for p in parts]))
        for begin, parts in by_output.items()
    }
    return Site.of(list(joined.items()), is_table=is_table)


def mask_of(name: str, adapters: Sequence[Adapter], rows: Sequence[Adapter | None], like: Tensor) -> Tensor:
    """Return the mask (B, 1, ΣR): 1 in a row's own columns, ordered as :func:`stack` puts them."""
    owners: dict[int, list[Adapter]] = {}
    for adapter in adapters:
        for begin, part in adapter.sites[name].parts if name in adapter.sites else ():
            owners.setdefault(begin, []).extend([adapter] * len(part.up))
    order = [owner for some in owners.values() for owner in some]
    lines = [[float(owner is row) for owner in order] for row in rows]
    return torch.tensor(lines, dtype=like.dtype, device=like.device).unsqueeze(1)
