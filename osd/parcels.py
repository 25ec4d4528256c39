"""What the decode loop hands to the recorder's thread: rounds as they were, a few at a time, and what ended with them.

The loop only notes where things lie. To look at a round costs Python more than the round is worth by itself, and runs
cold there; :mod:`osd.gather` looks at many in one go. Waiting costs only memory: logits are kept, not copied. Those on
a GPU do not wait: what is kept of them is found there, and that waits.
"""

from __future__ import annotations

from typing import NamedTuple

from osd.gather import Launched, Spans, Taken, spans_of
from osd.row import Completion

ROUNDS = 32
"""Handed over at once at most. More of them gain little and push other things out of the processor's caches."""
BYTES = 8 << 20
"""Of logits that wait to be handed over."""


class Parcel(NamedTuple):
    """Some rounds in order, and requests that ended with the last of them."""

    taken: list[Taken]
    launched: list[Launched]
    """Of rounds on a GPU."""
    completions: list[Completion]

    @property
    def positions(self) -> int:
        """Tokens that the rounds brought; what is kept of them is no more."""
        return sum(sum(taken.counts) for taken in self.taken)

    @property
    def bytes(self) -> int:
        """Memory that the parcel holds while it waits."""
        small = sum(tensor.nbytes for launched in self.launched for tensor in launched.kept)
        return small + sum(taken.logits.nbytes for taken in self.taken)

    def kept(self, mode: str) -> int:
        """Positions that would be kept of it."""
        return sum(int(spans.lengths.sum()) for spans in self._spans(mode))

    def without_positions(self) -> Parcel:
        """The completions alone."""
        return Parcel([], [], self.completions)

    def _spans(self, mode: str) -> list[Spans]:
        return [spans_of(self.taken, mode)[0], *(launched.spans for launched in self.launched)]
