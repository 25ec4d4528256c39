"""Attention metadata: where a forward pass reads and writes in a cache of rows of different length.

A tree of drafted tokens is depths, and a mask by which each token sees its ancestors (:func:`lay_out`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from osd.draft_tree import Tree
from osd.models.ragged_attention import ALIGNED, AttentionGroup, group, share_out

BAND = 32
"""Tokens of one row up to which a pass takes its mask from one that was made beforehand."""


Sees = Callable[[Tensor, Tensor], Tensor]
"""What a query at a position, (B, T, 1), may see of keys at positions (B or 1, 1, span): (B, T, span) bool."""
Find = Callable[[int, Tensor], Tensor]
"""The slots of positions (B, T), of the rows from a first one on; or of positions (T,) of that row."""


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """Where one forward pass reads and writes: rows ``first`` … ``first + B − 1``, T tokens each."""

    first: int
    groups: Sequence[AttentionGroup]
    """The rows, grouped as they attend together; each row reads up to its own ``span``."""
    positions: Tensor
    """(B, T) int64: position of each token fed; consecutive within a row, or depths in a tree."""
    slots: Tensor
    """(B · T,) int64, or (N,) in a packed pass: where keys and values are written; a tree's tokens one after
    another."""
    mask: Tensor
    """(B, 1, T, span) additive: 0 where the query may see the key, the dtype's minimum elsewhere."""
    span: int
    """Positions that are read: those of the longest row, this pass included."""
    queries: Tensor
    """(B, T) int64: ``positions``, also where the model knows none: they are those of padding."""
    tree: tuple[Tensor, Tensor] | None = None
    """(B, K) int64 each: where a tree's tokens, those fed before included, stand among their row's keys, and their
    positions; None for chains, whose keys stand in order."""
    packed: Tensor | None = None
    """(N,) int64: which of the B · T tokens are computed; None for all of them."""
    _windows: dict[int, Sequence[AttentionGroup]] = field(default_factory=dict)

    def narrow(self, sees: Sees) -> Tensor:
        """Return the mask of a layer whose queries see less, by the positions of both; a tree's tokens stand at their
        depths."""
        keys = torch.arange(self.span, device=self.queries.device).unsqueeze(0)
        if self.tree is not None:
            columns, positions = self.tree
            keys = keys.repeat(len(columns), 1).scatter_(1, columns, positions)
        seen = sees(self.queries.unsqueeze(2), keys.unsqueeze(1)).unsqueeze(1)
        return self.mask.masked_fill(~seen, torch.finfo(self.mask.dtype).min)

    def within(self, window: int | None) -> Sequence[AttentionGroup]:
        """Return the groups of a layer that sees the last ``window`` positions, the query's own included."""
        if window is None or self.span <= window:
            return self.groups
        if window not in self._windows:
            mask = self.narrow(lambda query, key: key > query - window)
            self._windows[window] = [
                group._replace(mask=mask[group.rows, :, : group.width, : group.span]) for group in self.groups
            ]
        return self._windows[window]


def alignment(device: torch.device) -> int:
    """Return the number of elements that a mask line's stride must be a multiple of on this device."""
    return 1 if device.type == "cpu" else ALIGNED


class AttentionMetadataBuilder:
    """Builds :class:`AttentionMetadata` for a cache of rows of ``length`` positions, of which the model knows
    ``limit``."""

    def __init__(
        self, length: int, limit: int, layers: int, size: Callable[[], int], device: torch.device, dtype: torch.dtype,
        find: Find,
    ) -> None:  # fmt: skip
        """Prepare masks and positions. ``size``: elements of one position's keys, see
        :func:`osd.models.ragged_attention.share_out`; ``find``: says where positions lie."""
        self.length, self.limit, self._layers, self._size = length, limit, layers, size
        self._find = find
        self._aligned = alignment(device)
        self._ramp = torch.arange(self._wide(length), device=device)
        self._seen = torch.zeros((), dtype=dtype, device=device)
        self._hidden = torch.full((), torch.finfo(dtype).min, dtype=dtype, device=device)
        self._bands: dict[int, Tensor] = {}
        """(1, 1, BAND, length + BAND or more) additive masks by shift: what tokens at 0, 1, … see of the positions from
        −length − shift on. One for each offset at which a mask may begin between two aligned ones."""

    def rows(
        self, first: int, starts: Sequence[int], width: int, counts: Sequence[int], packed: Tensor | None = None
    ) -> AttentionMetadata:
        """Return the metadata of B rows from ``first``: row i takes ``width`` tokens at positions ``starts[i]`` …,
        which lie within the rows. With ``packed`` (N,) only those of the B · width tokens are fed, the first
        ``counts[i]`` of each row."""
        if len(starts) == 1 and packed is None and width <= BAND:
            return self._few_of_one(first, starts[0], width)
        begin, span = self._column(starts), max(starts) + width
        columns = begin + self._ramp[:width]
        visible = self._ramp[: self._wide(span)] <= columns.unsqueeze(-1)
        return self._feed(first, starts, counts, columns, columns, visible, span, packed)

    def _few_of_one(self, first: int, start: int, width: int) -> AttentionMetadata:
        """Return the metadata of a few tokens of one row, sliced from tensors that were made before."""
        span, begin = start + width, self.length - start
        shift = -begin % self._aligned
        if shift not in self._bands:
            self._bands[shift] = self._make_band(shift)
        mask = self._bands[shift][:, :, :width, begin + shift : begin + shift + span]
        columns = self._ramp[start:span]
        slots = self._find(first, columns)
        groups = [AttentionGroup(slice(0, 1), slice(0, width), width, start, span, mask, None)]
        lines = columns.unsqueeze(0)
        return AttentionMetadata(first, groups, self._known(lines, span), slots, mask, span, lines)

    def _make_band(self, shift: int) -> Tensor:
        first = -self.length - shift
        columns = torch.arange(first, first + self._wide(BAND - first), device=self._ramp.device)
        lines = torch.arange(BAND, device=self._ramp.device).unsqueeze(1)
        return torch.where(columns <= lines, self._seen, self._hidden)[None, None]

    def trees(
        self, starts: Sequence[int], depths: Tensor, seen: Tensor, counts: Sequence[int], packed: Tensor | None,
        offset: int = 0,
    ) -> AttentionMetadata:  # fmt: skip
        """Return the metadata of trees in the first B rows, of which ``offset`` tokens were fed before.

        Token i of a row goes to slot ``starts`` + ``offset`` + i, stands at position ``starts`` + ``depths`` (B, T),
        and sees the text before ``starts`` and its ancestors, ``seen`` (B, T, offset + T).
        """
        begin, width = self._column(starts), depths.shape[1]
        span = max(starts) + offset + width
        grown = begin + self._ramp[: offset + width]
        visible = (self._ramp[: self._wide(span)] < begin).unsqueeze(1).repeat(1, width, 1)
        visible.scatter_(2, grown.unsqueeze(1).expand(-1, width, -1), seen)
        begins = [start + offset for start in starts]
        # a token that was fed before is as deep as there are ancestors, for whichever of these descends from it
        deep = ((seen.cumsum(2) - 1) * seen).amax(1) if offset else depths
        feed = self._feed(0, begins, counts, begin + depths, grown[:, offset:], visible, span, packed)
        return replace(feed, tree=(grown, begin + deep))

    def _feed(
        self, first: int, starts: Sequence[int], counts: Sequence[int], queries: Tensor, columns: Tensor,
        visible: Tensor, span: int, packed: Tensor | None,
    ) -> AttentionMetadata:  # fmt: skip
        """Return the metadata of B rows whose T tokens stand at the positions ``queries`` (B, T), are written at
        ``columns`` (B, T) and see what is ``visible``, (B, T, span or more)."""
        mask = torch.where(visible, self._seen, self._hidden).unsqueeze(1)[..., :span]
        fed = counts if packed is not None else [visible.shape[1]] * len(starts)
        groups = group(share_out(starts, fed, self._size(), self._layers), fed, mask, packed)
        slots = self._find(first, columns).view(-1)
        slots = slots if packed is None else slots[packed]
        known = self._known(queries, span)
        return AttentionMetadata(first, groups, known, slots, mask, span, queries, packed=packed)

    def _wide(self, numbers: int) -> int:
        """Round a mask line's length up to the alignment."""
        return -(-numbers // self._aligned) * self._aligned

    def _known(self, positions: Tensor, span: int) -> Tensor:
        """Clamp positions to those that the model knows; beyond them is padding."""
        return positions.clamp(max=self.limit - 1) if span > self.limit else positions

    def _column(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, device=self._ramp.device).unsqueeze(1)


class Layout(NamedTuple):
    """Depths and mask of B trees of at most T − 1 drafted tokens, the root included."""

    depths: Tensor
    """(B, T) int64: tokens from the row's last one; 0 for padding."""
    seen: Tensor
    """(B, T, T) bool: whether node i sees node j: its ancestors and itself; padding sees the root."""


def lay_out(trees: Sequence[Tree], width: int, device: torch.device) -> Layout:
    """Return the layout of trees; ``width`` T is one more than the largest tree has tokens.

    Ancestors are a set of bits while they are gathered.
    """
    ancestors = b"".join(_ancestors(tree, width) for tree in trees)
    packed = np.frombuffer(ancestors, np.uint8).reshape(len(trees), width, -1)
    seen = np.unpackbits(packed, axis=2, count=width, bitorder="little").view(np.bool_)
    depths = [[*tree.depths(), *[0] * (width - 1 - len(tree))] for tree in trees]
    return Layout(torch.tensor(depths, device=device), torch.from_numpy(seen).to(device))


def _ancestors(tree: Tree, width: int) -> bytes:
    """Return bits (T, ⌈T / 8⌉): bit j of line i is whether node i sees node j."""
    lines = [1]
    for node, parent in enumerate(tree.parents, 1):
        lines.append(lines[parent] | 1 << node)
    lines += [1] * (width - len(lines))
    return b"".join(line.to_bytes((width + 7) // 8, "little") for line in lines)


def tables(trees: Sequence[Tree], width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return parents (B, N), −1 for padding, and turns (B, N), see :meth:`osd.draft_tree.Tree.turns`; N = ``width``."""
    parents = [[*tree.parents, *[-1] * (width - len(tree))] for tree in trees]
    turns = [[*tree.turns(), *[-1] * (width - len(tree))] for tree in trees]
    both = torch.tensor([parents, turns], device=device)
    return both[0], both[1]
