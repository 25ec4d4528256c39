"""Proposers from what can be asked about texts: what looks a text up, and what keeps a place for every row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from osd.draft import TreeProposal
from osd.sequence import SequenceState

Index = npt.NDArray[np.int64]
TAIL = 8
"""A row's last tokens that a keeper of places is told: longer contexts it does not keep."""


class Finder(Protocol):
    """Finds what may follow a text, from the text alone: prompt lookup, an index of served texts."""

    def propose(self, texts: Sequence[Index], most: Sequence[int]) -> Sequence[TreeProposal]:
        """A tree for each text, of so many tokens at most."""
        ...


class LearningTable(Protocol):
    """Keeps a place for every row, and learns: a table of n-grams."""

    def open(self, prompt: Index) -> int:
        """A row begins with these tokens: its place."""
        ...

    def learn(self, place: int, tokens: Index, start: int, *, shared: bool) -> None:
        """The target said ``tokens[start:]`` of the row's text; those before are context. Without ``shared`` no other
        row may profit."""
        ...

    def close(self, place: int) -> None:
        """The row is over."""
        ...

    def propose(
        self, places: Sequence[int], tails: Sequence[Any], most: Sequence[int], depths: Sequence[int]
    ) -> Sequence[TreeProposal]:
        """A tree for each row, of so many tokens and so deep at most; ``tails`` are the ends of their texts."""
        ...


class LookupProposer:
    """Asks a finder. It learns nothing."""

    def __init__(self, name: str, finder: Finder) -> None:
        self.name, self.finder = name, finder

    def join(self, row: SequenceState) -> None:
        """See :class:`osd.drafters.tree.Proposer`."""

    def propose(
        self, rows: Sequence[SequenceState], depths: Sequence[int], nodes: Sequence[int]
    ) -> Sequence[TreeProposal]:
        """See :class:`osd.drafters.tree.Proposer`."""
        return self.finder.propose([np.array(row.tokens, np.int64) for row in rows], nodes)

    def learn(self, row: SequenceState, start: int) -> None:
        """See :class:`osd.drafters.tree.Proposer`."""

    def recall(self, row: SequenceState, start: int) -> None:
        """See :class:`osd.drafters.tree.Proposer`."""

    def leave(self, row: SequenceState) -> None:
        """See :class:`osd.drafters.tree.Proposer`."""


class TableProposer:
    """Asks a keeper of places, and tells it what the target said."""

    def __init__(self, name: str, keeper: LearningTable) -> None:
        self.name, self.keeper = name, keeper
        self._places: dict[str, int] = {}

    def join(self, row: SequenceState) -> None:
        """See :class:`osd.drafters.tree.Proposer`."""
        self._places[row.request.id] = self.keeper.open(np.array(row.tokens, np.int64))

    def place_of(self, row: SequenceState) -> tuple[Any, int]:
        """See :class:`osd.drafters.blended.Remembering`."""
        return self.keeper, self._places[row.request.id]

    def propose(
        self, rows: Sequence[SequenceState], depths: Sequence[int], nodes: Sequence[int]
    ) -> Sequence[TreeProposal]:
        """See :class:`osd.drafters.tree.Proposer`."""
        places = [self._places[row.request.id] for row in rows]
        return self.keeper.propose(places, [row.tokens[-TAIL:] for row in rows], nodes, depths)

    def learn(self, row: SequenceState, start: int) -> None:
        """See :class:`osd.drafters.tree.Proposer`."""
        teach(self.keeper, self._places[row.request.id], row, start, shared=True)

    def recall(self, row: SequenceState, start: int) -> None:
        """See :class:`osd.drafters.tree.Proposer`."""
        teach(self.keeper, self._places[row.request.id], row, start, shared=False)

    def leave(self, row: SequenceState) -> None:
        """See :class:`osd.drafters.tree.Proposer`."""
        self.keeper.close(self._places.pop(row.request.id))


def teach(keeper: LearningTable, place: int, row: SequenceState, start: int, *, shared: bool) -> None:
    """Tell a keeper of the row's tokens from ``start`` on, with as many before as it may need."""
    keeper.learn(place, *text_from(row, start), shared=shared)


def text_from(row: SequenceState, start: int) -> tuple[Index, int]:
    """The row's tokens from ``start`` on, behind up to TAIL of those before; and where in that they begin."""
    before = max(0, start - TAIL)
    return np.array(row.tokens[before:], np.int64), start - before
