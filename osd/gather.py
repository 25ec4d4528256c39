"""Rounds that wait, in the decode loop, until there are enough of them to be reduced in one call.

A call of the compiled pass, the arrays that it fills and handing them over cost several times what one round's few
positions do. Waiting costs only memory: logits are kept, not copied.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from osd.parcels import Parcel, Span
from osd.reduce import Reducer, Rows
from osd.row import Completion

ROUNDS = 8
"""More of them gain little and push other things out of the processor's caches."""
POSITIONS = 64
BYTES = 8 << 20
"""Of logits that are kept."""


class Gathering:
    """Of one decode loop, in order."""

    def __init__(self, reducer: Reducer) -> None:
        self._reducer = reducer
        self._begin()

    def _begin(self) -> None:
        self._rows: list[Rows] = []
        self._spans: list[Span] = []
        self._chances: list[Tensor] = []
        self._positions = self._bytes = 0

    @property
    def full(self) -> bool:
        """Whether it is time to reduce."""
        return len(self._rows) >= ROUNDS or self._positions >= POSITIONS or self._bytes >= BYTES

    def fits(self, chances: Tensor | None) -> bool:
        """Whether a round with, or without, known chances may follow those that are here."""
        return not self._rows or bool(self._chances) == (chances is not None)

    def add(self, spans: Sequence[Span], rows: Rows, chances: Tensor | None) -> None:
        """One round's positions, see :class:`osd.parcels.Parcel`."""
        self._spans += spans
        self._rows.append(rows)
        if chances is not None:
            self._chances.append(chances)
        self._positions += len(rows.addresses)
        self._bytes += rows.logits.numel() * 4

    def parcel(self, completions: list[Completion]) -> Parcel | None:
        """Everything, reduced, and the requests that ended with it; None where there is nothing."""
        if not self._rows:
            return Parcel([], None, None, completions) if completions else None
        chances = torch.cat(self._chances) if self._chances else None
        parcel = Parcel(self._spans, self._reducer.reduce(self._rows), chances, completions)
        self._begin()
        return parcel
