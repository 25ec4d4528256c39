"""What the decode loop hands to the recorder's thread: rounds as they were, a few at a time, and what ended with them.

The loop only notes where things lie. To look at a round costs Python more than the round is worth by itself, and runs
cold there; :mod:`osd.gather` looks at many in one go. Waiting costs only memory: logits are kept, not copied.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from osd.row import Completion
from osd.verdict import Verdict
from storage.records import Request

ROUNDS = 32
"""Handed over at once at most. More of them gain little and push other things out of the processor's caches."""
BYTES = 8 << 20
"""Of logits that wait to be handed over."""


class Taken(NamedTuple):
    """A round of B rows, as it was."""

    requests: list[Request]
    lengths: list[int]
    """(B,) of the rows' texts, what the round brought included."""
    counts: list[int]
    """(B,) tokens that it brought."""
    verdict: Verdict
    logits: Tensor
    """(B, G + 1, V), which must stay as they are."""


class Parcel(NamedTuple):
    """Some rounds in order, and requests that ended with the last of them."""

    taken: list[Taken]
    completions: list[Completion]

    @property
    def positions(self) -> int:
        """Tokens that the rounds brought; what is kept of them is no more."""
        return sum(sum(taken.counts) for taken in self.taken)

    @property
    def bytes(self) -> int:
        """Memory that the parcel holds while it waits."""
        return sum(taken.logits.nbytes for taken in self.taken)

    def without_positions(self) -> Parcel:
        """The completions alone."""
        return Parcel([], self.completions)
