"""Drafted tokens of one row that branch: a tree, which grows from proposals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, SupportsInt

import numpy as np
import numpy.typing as npt

from storage.errors import BadProposal

Place = tuple[int, int]
"""A node and the token that follows it."""


class TreeProposal(Protocol):
    """Proposed tokens and the one that each follows. Which tokens are proposed depends on nothing that is drawn.

    A proposal may also have ``chances`` (N,): the proposer's estimate of how likely each token is to follow its parent.
    """

    @property
    def tokens(self) -> Iterable[SupportsInt]:
        """(N,) token ids."""

    @property
    def parents(self) -> Iterable[SupportsInt]:
        """(N,) the token that each follows, an earlier index; −1 is the row's last token."""


@dataclass(frozen=True, slots=True, eq=False)
class TokenProposal:
    """N proposed tokens for one row, each certain: a :class:`TreeProposal`."""

    tokens: Sequence[int] | npt.NDArray[np.int64]
    """(N,) token ids; siblings are distinct."""
    parents: Sequence[int] | npt.NDArray[np.int64]
    """(N,) the token that each follows, an earlier index; −1 is the row's last token."""
    chances: npt.NDArray[np.float64] | None = None
    """(N,) the proposer's estimate of how likely each is to follow its parent; None where it gives none."""

    def __len__(self) -> int:
        return len(self.tokens)


NOTHING = TokenProposal((), ())
"""The empty proposal, where nothing is known."""


@dataclass(slots=True, eq=False)
class Tree:
    """N drafted tokens of one row. Node 0 is the row's last token, node i the i-th drafted one; siblings differ."""

    tokens: list[int] = field(default_factory=list)
    """(N,) token ids."""
    parents: list[int] = field(default_factory=list)
    """(N,) the node that each token follows, an earlier one."""
    drawn: int = 0
    """Number of first tokens that were drawn from q, several children of a node without replacement, in their order;
    the others are certain."""
    places: dict[Place, int] = field(default_factory=dict)
    """The node where a token follows a node."""
    likely: dict[int, float] = field(default_factory=dict)
    """How likely proposed nodes are to follow their parents, where the proposer gives an estimate."""

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, parent: int, token: int) -> int:
        """Return the node where ``token`` follows ``parent``: a new one, or the one that is there."""
        node = self.places.setdefault((parent, token), len(self.tokens) + 1)
        if node > len(self.tokens):
            self.tokens.append(token)
            self.parents.append(parent)
        return node

    @property
    def is_chain(self) -> bool:
        """Whether every token follows the one before it."""
        return self.parents == list(range(len(self.parents)))

    @property
    def is_drawn_chain(self) -> bool:
        """Whether it is a chain of drawn tokens, as the acceptance rule for chains takes it."""
        return self.drawn == len(self) and self.is_chain

    def turns(self) -> list[int]:
        """Return each token's index among the siblings drawn at its parent, −1 for those that are certain: (N,)."""
        counts, turns = [0] * (len(self) + 1), [-1] * len(self)
        for i, parent in enumerate(self.parents[: self.drawn]):
            turns[i], counts[parent] = counts[parent], counts[parent] + 1
        return turns

    def depths(self) -> list[int]:
        """Return the tokens from the root to each node, 0 for itself: (N + 1,)."""
        depths = [0]
        for parent in self.parents:
            depths.append(depths[parent] + 1)
        return depths

    def reach(self, node: int) -> int:
        """Return the depth of the deepest node under this one; its own for a leaf."""
        depths, under = self.depths(), {node}
        for child, parent in enumerate(self.parents, 1):
            if parent in under:
                under.add(child)
        return max(depths[each] for each in under)

    def follow(self, path: Sequence[int]) -> list[int]:
        """Return the tokens along a path of nodes from the root, and the one that was to be tried first after them, if
        any."""
        tokens = [self.tokens[node - 1] for node in path[1:]]
        return tokens + [t for t, parent in zip(self.tokens, self.parents, strict=True) if parent == path[-1]][:1]


def chain(tokens: Sequence[int], *, drawn: bool) -> Tree:
    """Return a chain as a tree: drawn from q, or certain."""
    tree = Tree(list(tokens), list(range(len(tokens))), len(tokens) if drawn else 0)
    tree.places = {(i, token): i + 1 for i, token in enumerate(tokens)}
    return tree


def graft(tree: Tree, proposal: TreeProposal, depth: int, nodes: int, vocabulary: int) -> Tree:
    """Let a proposal grow into the tree, no deeper than ``depth`` and to no more than ``nodes`` nodes in all.

    What is there already is shared: a token of the chain keeps the q that it was drawn from. In the order of the
    proposal the first tokens that fit stay, each with all before it. Raises BadProposal for parents that are no
    earlier token and for tokens outside the vocabulary.
    """
    depths, nodes_of = tree.depths(), [0]  # the node of the root and of each proposed token; −1 where left out
    pairs = _pairs(proposal, vocabulary)
    for (token, parent), chance in zip(pairs, _chances(proposal, len(pairs)), strict=True):
        at = nodes_of[parent + 1]
        fits = at >= 0 and ((at, token) in tree.places or (depths[at] < depth and len(tree) < nodes))
        nodes_of.append(tree.add(at, token) if fits else -1)
        if len(depths) <= len(tree):
            depths.append(depths[at] + 1)
        if fits and chance is not None:
            tree.likely.setdefault(nodes_of[-1], chance)
    return tree


def _chances(proposal: TreeProposal, count: int) -> Sequence[float | None]:
    """Return the proposer's estimate for each token, None where it gives none. Raises BadProposal."""
    chances = getattr(proposal, "chances", None)
    if chances is None:
        return [None] * count
    if len(chances) != count:
        raise BadProposal(reason=f"{count} tokens with {len(chances)} chances")
    return [min(1.0, max(0.0, float(each))) for each in chances]


def _pairs(proposal: TreeProposal, vocabulary: int) -> list[Place]:
    """Return (token, parent) pairs of a valid proposal. Raises BadProposal."""
    tokens, parents = ([int(each) for each in column] for column in (proposal.tokens, proposal.parents))
    if len(tokens) != len(parents):
        raise BadProposal(reason=f"{len(tokens)} tokens with {len(parents)} parents")
    for i, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        if not -1 <= parent < i:
            raise BadProposal(reason=f"token {i} follows token {parent}, which is no earlier one")
        if not 0 <= token < vocabulary:
            raise BadProposal(reason=f"token {i} is {token}, outside the vocabulary of {vocabulary}")
    return list(zip(tokens, parents, strict=True))


def moves(path: Sequence[int]) -> list[Place]:
    """Return the (source, target) nodes of a path that is compacted: its k-th node belongs at place k."""
    return [(node, place) for place, node in enumerate(path) if node != place]
