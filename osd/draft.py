"""What drafters propose for a batch in one round, and how the drafts of its parts become one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from osd.draft_tree import Tree, chain

Part = tuple["Draft", Sequence[int]]
"""A draft, and the places of its rows in the batch."""


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposals for B rows, G tokens each at most."""

    tokens: Tensor
    """(B, G) int64; beyond a row's length they mean nothing. In trees, G is the most that a row has."""
    lengths: tuple[int, ...]
    """Tokens that count, a row."""
    q: Tensor | None
    """(B, G, V) the distributions drawn from, after warping; None in a batch that is all greedy. Of trees (B, Q, V): at
    [b, i] what the first child of node i was drawn from, for all nodes with drawn children."""
    passes: int
    """Passes of the drafter that it took: G, more where rows declined their last tokens, or fewer where a table named
    some. Of several drafters, those of the one that made most."""
    trees: tuple[Tree, ...] | None = None
    """The same tokens with the node that each follows; None where every row has a chain, of tokens drawn from q in a
    batch that samples."""
    fed: int = 0
    """Leading tokens of the chains that the draft itself has read."""

    def to(self, device: torch.device) -> Draft:
        """Return the same on a device."""
        if device == self.tokens.device:
            return self
        return replace(self, tokens=self.tokens.to(device), q=None if self.q is None else self.q.to(device))

    @property
    def size(self) -> int:
        """G."""
        return self.tokens.shape[1]


def empty_draft(rows: int, device: torch.device) -> Draft:
    """Return a draft of no tokens."""
    return Draft(torch.zeros(rows, 0, dtype=torch.long, device=device), (0,) * rows, None, 0)


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


def as_trees(draft: Draft, *, sampled: bool) -> Sequence[Tree]:
    """Return a draft's trees; its chains as such."""
    if draft.trees is not None:
        return draft.trees
    lines = zip(draft.tokens.tolist(), draft.lengths, strict=True)
    return [chain(line[:length], drawn=sampled) for line, length in lines]


def draft_of(trees: Sequence[Tree], q: Tensor | None, passes: int, device: torch.device) -> Draft:
    """Return the rows' trees as one draft; ``q`` and ``passes`` are those of the draft."""
    size = max(map(len, trees))
    lines = [[*tree.tokens, *[0] * (size - len(tree))] for tree in trees]
    tokens = torch.tensor(lines, dtype=torch.long, device=device).view(len(trees), size)
    return Draft(tokens, tuple(map(len, trees)), q, passes, trees=tuple(trees))


def without_branches(draft: Draft, *, sampled: bool) -> Draft:
    """Return the same as chains, where all trees are chains that the acceptance rule for chains takes."""
    chains = all(tree.is_drawn_chain if sampled else tree.is_chain for tree in draft.trees or ())
    return replace(draft, trees=None) if chains else draft


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
    return draft_of(trees, q, max(draft.passes for draft, _ in parts), device)
