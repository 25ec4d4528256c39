"""What the decode loop hands to the recorder's thread: a few rounds at a time, and the requests that ended with them.

The loop only notes references. To look at a round costs Python more than the round is worth by itself, and runs
cold there; :mod:`osd.recording.extract` looks at many at once. Waiting costs only memory: logits are kept, not copied.
Those on a GPU do not wait: what is kept of them is computed there, and that waits.
"""

from __future__ import annotations

from collections.abc import Iterable

from osd.recording.branches import PendingBranches
from osd.recording.extract import PendingBlock, RecordedRound, Spans, spans_of
from osd.sequence import Completion

ROUNDS = 32
"""Most rounds of a batch. More of them gain little and push other things out of the processor's caches."""
BYTES = 8 << 20
"""Bytes of logits at which a batch is full."""


class RoundBatch:
    """Some rounds in order, and the requests that ended with the last of them."""

    __slots__ = ("branches", "bytes", "completions", "launched", "rows", "taken")

    def __init__(self, taken: Iterable[RecordedRound] = (), completions: Iterable[Completion] = ()) -> None:
        self.taken: list[RecordedRound] = []
        self.launched: list[PendingBlock] = []
        """What is kept of rounds on a GPU."""
        self.branches: list[PendingBranches] = []
        """The same behind refused tokens."""
        self.completions = list(completions)
        self.bytes = 0
        """Memory that the batch holds while it waits."""
        self.rows = 0
        """Rows of all its rounds: each brought its request at least one position."""
        for one in taken:
            self.add(one)

    @property
    def full(self) -> bool:
        """Whether no more rounds should be added."""
        return self.bytes >= BYTES or max(len(self.taken), len(self.launched)) >= ROUNDS

    def add(self, taken: RecordedRound) -> None:
        """Add a round whose logits wait where they are."""
        self.taken.append(taken)
        self.bytes += taken.scored.lines.nbytes + (0 if taken.scored.hidden is None else taken.scored.hidden.nbytes)
        self.rows += len(taken.progress)

    def add_launched(self, launched: PendingBlock, branches: PendingBranches | None = None) -> None:
        """Add what is kept of a round on a GPU."""
        if branches:
            self.branches.append(branches)
            self.bytes += sum(tensor.nbytes for tensor in branches.kept)
        self.launched.append(launched)
        self.bytes += launched.bytes
        self.rows += len(launched.spans.owners)

    def kept(self, mode: str) -> int:
        """Count the positions that would be kept of it."""
        return sum(int(spans.lengths.sum()) for spans in self._spans(mode))

    def _spans(self, mode: str) -> list[Spans]:
        return [spans_of(self.taken, mode)[0], *(launched.spans for launched in self.launched)]
