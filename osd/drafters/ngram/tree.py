"""A draft without a model: a tree of tokens, each certain."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Index = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class NgramProposal:
    """N proposed tokens for one row. q is 1 for every token: which tokens are proposed involves no chance."""

    tokens: Index
    """(N,) token ids; siblings are distinct."""
    parents: Index
    """(N,) the token that each follows, an earlier index; −1 is the row's last token."""
    chances: npt.NDArray[np.float64] | None = None
    """(N,) the proposer's estimate of how likely each is to follow its parent; None where it gives none."""

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def depths(self) -> Index:
        """(N,) tokens from the row's last one: 1 for its children."""
        depths = np.ones(len(self), np.int64)
        for i, parent in enumerate(self.parents):
            if parent >= 0:
                depths[i] = depths[parent] + 1
        return depths


NOTHING = NgramProposal(np.zeros(0, np.int64), np.zeros(0, np.int64))
"""The empty proposal, where nothing is known."""


def accepted(proposal: NgramProposal, text: Index) -> int:
    """Count the text's first tokens that are in the tree, one below the other: what greedy verification accepts."""
    node = -1
    for count, token in enumerate(text.tolist()):
        found = np.flatnonzero((proposal.parents == node) & (proposal.tokens == token))
        if not len(found):
            return count
        node = int(found[0])
    return len(text)
