"""Rows of different adapters in one pass over the weights that they share.

Of the adapters that the rows of a pass use, all A stand below one another and all B beside one another; a row's
mask puts out the columns that are not its own:

    y = x Wᵀ + ((x [A₁; A₂; …]ᵀ) ∘ mask) [s₁ B₁ᵀ; s₂ B₂ᵀ; …]

Two products a place, whatever the number of adapters, and ranks may differ. A row without an adapter has a mask of 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from osd.lora.adapter import Adapter, LowRank

Stacked = dict[str, tuple[Tensor, Tensor, Tensor | None]]
"""Site → A (ΣR, in) (or a table (in, ΣR)), B (ΣR, out), and the mask (B, 1, ΣR); None where all rows are alike."""


class Mix:
    """What the adapters of the rows of a pass add to it."""

    def __init__(self, stacked: Stacked) -> None:
        self._stacked = stacked

    @property
    def sites(self) -> Sequence[str]:
        """Where something is added."""
        return list(self._stacked)

    def add(self, site: str, x: Tensor, y: Tensor) -> Tensor:
        """``y`` (B, T, out), into which the rows' parts of ``x`` (B, T, in) are added in place."""
        found = self._stacked.get(site)
        if found is not None:
            down, up, mask = found
            self._into(y, F.linear(x, down), up, mask)
        return y

    def embed(self, site: str, tokens: Tensor, y: Tensor) -> Tensor:
        """The same for an embedding: tokens (B, T)."""
        found = self._stacked.get(site)
        if found is not None:
            down, up, mask = found
            self._into(y, F.embedding(tokens, down), up, mask)
        return y

    def _into(self, y: Tensor, hidden: Tensor, up: Tensor, mask: Tensor | None) -> None:
        if mask is not None:
            hidden = (hidden.view(len(mask), -1, hidden.shape[-1]) * mask).view(hidden.shape)
        y.view(-1, y.shape[-1]).addmm_(hidden.view(-1, hidden.shape[-1]), up)


class Bank:
    """The adapters of the rows of one cache, row by row, and the mixes that passes over them need."""

    def __init__(self) -> None:
        self._rows: list[Adapter | None] = []
        self._mixes: dict[tuple[int, int], Mix | None] = {}
        self._stack: tuple[list[Adapter], dict[str, LowRank]] = ([], {})

    def set_rows(self, rows: Sequence[Adapter | None]) -> bool:
        """Which adapter each row uses from now on; whether any does."""
        self._rows = list(rows)
        self._mixes.clear()
        used = list(dict.fromkeys(adapter for adapter in rows if adapter is not None))
        if used != self._stack[0]:
            self._stack = (used, stack(used) if len(used) > 1 else {})
        return bool(used)

    def mix(self, first: int, count: int) -> Mix | None:
        """For a pass over rows ``first`` … ``first + count − 1``; None where none of them has an adapter."""
        key = first, count
        if key not in self._mixes:
            self._mixes[key] = self._make(self._rows[first : first + count])
        return self._mixes[key]

    @property
    def bytes(self) -> int:
        """Memory of what was put together for the passes: adapters that share one are there a second time."""
        return sum(part.bytes for part in self._stack[1].values())

    def _make(self, rows: Sequence[Adapter | None]) -> Mix | None:
        used = set(rows)
        if used == {None}:
            return None
        if len(used) == 1 and (only := rows[0]) is not None:
            return Mix({site: (part.down, part.up, None) for site, part in only.sites.items()})
        known = self._stack[0]
        parts = self._stack[1] if len(known) > 1 else known[0].sites
        return Mix({site: (part.down, part.up, mask_of(site, known, rows, part)) for site, part in parts.items()})


def stack(adapters: Sequence[Adapter]) -> dict[str, LowRank]:
    """The adapters' factors beside one another, at every site that one of them has."""
    sites: dict[str, LowRank] = {}
    for site in dict.fromkeys(site for adapter in adapters for site in adapter.sites):
        parts = [adapter.sites[site] for adapter in adapters if site in adapter.sites]
        is_table = parts[0].down.shape[0] != parts[0].up.shape[0]
        down = torch.cat([part.down for part in parts], dim=int(is_table))
        sites[site] = LowRank(down, torch.cat([part.up for part in parts]))
    return sites


def mask_of(site: str, adapters: Sequence[Adapter], rows: Sequence[Adapter | None], like: LowRank) -> Tensor:
    """(B, 1, ΣR): 1 in a row's own columns."""
    owners: list[Any] = [a for a in adapters if site in a.sites for _ in range(a.sites[site].up.shape[0])]
    lines = [[float(owner is row) for owner in owners] for row in rows]
    return torch.tensor(lines, dtype=like.up.dtype, device=like.up.device).unsqueeze(1)
