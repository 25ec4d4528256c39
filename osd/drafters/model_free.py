"""Adapters that make proposers of what looks a text up, and of what keeps a place for every row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from osd.draft_tree import TreeProposal
from osd.sequence import SequenceState

Index = npt.NDArray[np.int64]
TAIL = 8
"""Last tokens of a row that a keeper is given: it keeps no longer contexts."""


class Finder(Protocol):
    """Finds what may follow a text, from the text alone: prompt look-up, an index of served texts."""

    def propose(self, texts: Sequence[Index], most: Sequence[int]) -> Sequence[TreeProposal]:
        """Propose a tree for each text, of at most ``most[i]`` tokens."""


class LearningTable(Protocol):
    """Keeps a place for every row, and learns: a table of n-grams."""

    def open(self, prompt: Index) -> int:
        """Open a place for a row that begins with these tokens, and return it."""

    def learn(self, place: int, tokens: Index, start: int, *, shared: bool) -> None:
        """Learn ``tokens[start:]`` of the row's text, which the target chose; those before are context. Without
        ``shared`` no other row may profit."""

    def close(self, place: int) -> None:
        """Close the place of a row that has ended."""

    def propose(
        self, places: Sequence[int], tails: Sequence[Any], most: Sequence[int], depths: Sequence[int]
    ) -> Sequence[TreeProposal]:
        """Propose a tree for each row, of at most ``most[i]`` tokens and depth ``depths[i]``; ``tails`` are the ends of
        their texts."""


class LookupProposer:
    """A proposer from a finder. It learns nothing."""

    def __init__(self, name: str, finder: Finder) -> None:
        self.name, self.finder = name, finder

    def join(self, row: SequenceState) -> None:
        """Do nothing; see :class:`osd.drafters.tree.Proposer`."""

    def propose(
        self, rows: Sequence[SequenceState], depths: Sequence[int], nodes: Sequence[int]
    ) -> Sequence[TreeProposal]:
        """Propose trees from the rows' texts; see :class:`osd.drafters.tree.Proposer`."""
        return self.finder.propose([np.array(row.tokens, np.int64) for row in rows], nodes)

    def learn(self, row: SequenceState, start: int) -> None:
        """Do nothing; see :class:`osd.drafters.tree.Proposer`."""

    def recall(self, row: SequenceState, start: int) -> None:
        """Do nothing; see :class:`osd.drafters.tree.Proposer`."""

    def leave(self, row: SequenceState) -> None:
        """Do nothing; see :class:`osd.drafters.tree.Proposer`."""


class TableProposer:
    """A proposer from a keeper of places, which learns what the target chose."""

    def __init__(self, name: str, keeper: LearningTable) -> None:
        self.name, self.keeper = name, keeper
        self._places: dict[str, int] = {}

    def join(self, row: SequenceState) -> None:
        """Open a place for the row; see :class:`osd.drafters.tree.Proposer`."""
        self._places[row.request.id] = self.keeper.open(np.array(row.tokens, np.int64))

    def place_of(self, row: SequenceState) -> tuple[Any, int]:
        """Return the keeper and the row's place; see :class:`osd.drafters.blended.PlacesRows`."""
        return self.keeper, self._places[row.request.id]

    def propose(
        self, rows: Sequence[SequenceState], depths: Sequence[int], nodes: Sequence[int]
    ) -> Sequence[TreeProposal]:
        """Propose trees from the rows' places; see :class:`osd.drafters.tree.Proposer`."""
        places = [self._places[row.request.id] for row in rows]
        return self.keeper.propose(places, [row.tokens[-TAIL:] for row in rows], nodes, depths)

    def learn(self, row: SequenceState, start: int) -> None:
        """Learn the row's new tokens for all rows; see :class:`osd.drafters.tree.Proposer`."""
        teach(self.keeper, self._places[row.request.id], row, start, shared=True)

    def recall(self, row: SequenceState, start: int) -> None:
        """Learn the row's new tokens for itself alone; see :class:`osd.drafters.tree.Proposer`."""
        teach(self.keeper, self._places[row.request.id], row, start, shared=False)

    def leave(self, row: SequenceState) -> None:
        """Close the row's place; see :class:`osd.drafters.tree.Proposer`."""
        self.keeper.close(self._places.pop(row.request.id))


def teach(keeper: LearningTable, place: int, row: SequenceState, start: int, *, shared: bool) -> None:
    """Have a keeper learn the row's tokens from ``start`` on, with as many before as it may need."""
    keeper.learn(place, *text_from(row, start), shared=shared)


def text_from(row: SequenceState, start: int) -> tuple[Index, int]:
    """Return the row's tokens from ``start`` on, behind up to TAIL of those before; and the index where they begin."""
    before = max(0, start - TAIL)
    return np.array(row.tokens[before:], np.int64), start - before
