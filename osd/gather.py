"""Rounds that wait, in the decode loop, until there are enough of them to be looked at and handed over in one go.

Handing over, and the compiled pass that reduces them, cost several times what one round's few positions do, and Python
that runs once a round runs cold. Waiting costs only memory: logits are kept, not copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from osd.parcels import Parcel, Span
from osd.reduce import Rows
from osd.row import Completion
from osd.verdict import Verdict
from storage.records import Request

ROUNDS = 32
"""More of them gain little and push other things out of the processor's caches."""
BYTES = 8 << 20
"""Of logits that are kept."""


class Taken(NamedTuple):
    """A round of B rows, as it was."""

    requests: list[Request]
    lengths: list[int]
    """(B,) of the rows' texts, what the round brought included."""
    counts: list[int]
    """(B,) tokens that it brought."""
    width: int
    """G + 1."""
    verdict: Verdict
    logits: Tensor
    """(B, G + 1, V)"""


class Gathering:
    """Of one decode loop, in order."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._rows: list[Rows] = []
        self._spans: list[Span] = []
        self._chances: list[Tensor] = []

    def fits(self, chances: Tensor | None) -> bool:
        """Whether a round with, or without, known chances may follow those that are here."""
        return not self._rows or bool(self._chances) == (chances is not None)

    def add(self, spans: Sequence[Span], rows: Rows, chances: Tensor | None) -> None:
        """One round's positions, see :class:`osd.parcels.Parcel`."""
        self._spans += spans
        self._rows.append(rows)
        if chances is not None:
            self._chances.append(chances)

    def parcel(self, completions: list[Completion]) -> Parcel | None:
        """Everything, and the requests that ended with it; None where there is nothing."""
        if not self._rows:
            return Parcel([], None, None, completions) if completions else None
        chances = torch.cat(self._chances) if self._chances else None
        parcel = Parcel(self._spans, self._rows, chances, completions)
        self._begin()
        return parcel
