"""Merges the drafts of a batch's parts into one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from osd.draft import Draft

Part = tuple[Draft, Sequence[int]]
"""A draft, and the places of its rows in the batch."""


def merge(parts: Sequence[Part], rows: int, vocabulary: int, device: torch.device, *, sampled: bool) -> Draft:
    """Merge drafts of B_j rows, Σ B_j ≤ ``rows``, into one of (B, G). Rows of no part have drafted nothing.

    Each row's q is what its own draft drew from; where nothing was drafted it is 0. A batch is ``sampled`` as a
    whole: then every part has a q.
    """
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


def pick(chance: Tensor | None, places: Sequence[int]) -> Tensor | None:
    """Select the rows at these places: (B, …) → (B_j, …)."""
    return None if chance is None else chance[torch.tensor(places, device=chance.device)]
