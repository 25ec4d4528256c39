"""Merges the drafts of a batch's parts into one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from osd.draft import Draft, Tree, chain

Part = tuple[Draft, Sequence[int]]
"""A draft, and the places of its rows in the batch."""


def merge(parts: Sequence[Part], rows: int, vocabulary: int, device: torch.device, *, sampled: bool) -> Draft:
    """Merge drafts of B_j rows, Σ B_j ≤ ``rows``, into one of (B, G). Rows of no part have drafted nothing.

    Each row's q is what its own draft drew from; where nothing was drafted it is 0. A batch is ``sampled`` as a
    whole: then every part has a q. Where one part has trees, all rows have.
    """
    if any(draft.trees is not None for draft, _ in parts):
        return _merge_trees(parts, rows, vocabulary, device, sampled=sampled)
    size = max((draft.size for draft, _ in parts), default=0)
    tokens = torch.zeros(rows, size, dtype=torch.long, device=device)
    q = torch.zeros(rows, size, vocabulary, dtype=torch.float32, device=device) if sampled and size else None
    lengths = [0] * rows
    for draft, places in parts:
        where = torch.tensor(places, device=device)
        tokens[where, : draft.size] = draft.tokens
        if q is not None and draft.q is not None:
            q[where, : draft.size] = draft.q
        for place, length in zip(places, draft.lengths, strict=True):
            lengths[place] = length
    return Draft(tokens, tuple(lengths), q, max((draft.passes for draft, _ in parts), default=0))


def _merge_trees(parts: Sequence[Part], rows: int, vocabulary: int, device: torch.device, *, sampled: bool) -> Draft:
    """Merge drafts of which some have trees; a chain is a tree whose tokens were drawn, or are certain."""
    trees = [Tree() for _ in range(rows)]
    for draft, places in parts:
        for place, tree in zip(places, as_trees(draft, sampled=sampled), strict=True):
            trees[place] = tree
    drawn = [(draft.q, places) for draft, places in parts if draft.q is not None and draft.q.shape[1]]
    most = max((q.shape[1] for q, _ in drawn), default=0)
    q = torch.zeros(rows, most, vocabulary, dtype=torch.float32, device=device) if sampled and most else None
    for own, places in drawn:
        if q is not None:
            q[torch.tensor(places, device=device), : own.shape[1]] = own
    size, passes = max(map(len, trees)), max(draft.passes for draft, _ in parts)
    lines = [[*tree.tokens, *[0] * (size - len(tree))] for tree in trees]
    tokens = torch.tensor(lines, dtype=torch.long, device=device).view(rows, size)
    return Draft(tokens, tuple(map(len, trees)), q, passes, trees=tuple(trees))


def as_trees(draft: Draft, *, sampled: bool) -> Sequence[Tree]:
    """Return a draft's trees; its chains as such."""
    if draft.trees is not None:
        return draft.trees
    lines = zip(draft.tokens.tolist(), draft.lengths, strict=True)
    return [chain(line[:length], drawn=sampled) for line, length in lines]


def pick(chance: Tensor | None, places: Sequence[int]) -> Tensor | None:
    """Select the rows at these places: (B, …) → (B_j, …)."""
    return None if chance is None else chance[torch.tensor(places, device=chance.device)]
