"""What the decode loop hands to the recorder's thread: rounds as they were, a few at a time, and what ended with them.

The loop only notes where things lie. To look at a round costs Python more than the round is worth by itself, and runs
cold there; :mod:`osd.recording.extract` looks at many in one go. Waiting costs only memory: logits are kept, not
copied. Those on a GPU do not wait: what is kept of them is found there, and that waits.
"""

from __future__ import annotations

from collections.abc import Iterable

from osd.recording.extract import Launched, Spans, Taken, spans_of
from osd.sequence import Completion

ROUNDS = 32
"""Handed over at once at most. More of them gain little and push other things out of the processor's caches."""
BYTES = 8 << 20
"""Of logits that wait to be handed over."""


class RoundBatch:
    """Some rounds in order, and requests that ended with the last of them."""

    __slots__ = ("bytes", "completions", "launched", "rows", "taken")

    def __init__(self, taken: Iterable[Taken] = (), completions: Iterable[Completion] = ()) -> None:
        self.taken: list[Taken] = []
        self.launched: list[Launched] = []
        """Of rounds on a GPU."""
        self.completions = list(completions)
        self.bytes = 0
        """Memory that the parcel holds while it waits."""
        self.rows = 0
        """Of all its rounds: each brought its request a position at least."""
        for one in taken:
            self.add(one)

    @property
    def full(self) -> bool:
        """No more rounds should be added."""
        return self.bytes >= BYTES or max(len(self.taken), len(self.launched)) >= ROUNDS

    def add(self, taken: Taken) -> None:
        """A round whose logits wait where they are."""
        self.taken.append(taken)
        self.bytes += taken.scored.lines.nbytes
        self.rows += len(taken.progress)

    def add_launched(self, launched: Launched) -> None:
        """What is kept of a round."""
        self.launched.append(launched)
        self.bytes += sum(tensor.nbytes for tensor in launched.kept)
        self.rows += len(launched.spans.owners)

    def kept(self, mode: str) -> int:
        """Positions that would be kept of it."""
        return sum(int(spans.lengths.sum()) for spans in self._spans(mode))

    def _spans(self, mode: str) -> list[Spans]:
        return [spans_of(self.taken, mode)[0], *(launched.spans for launched in self.launched)]
