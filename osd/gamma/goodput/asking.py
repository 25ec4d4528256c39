"""Whom goodput probes where nobody drafts: one row, which is cheaper than a batch."""

from __future__ import annotations

from collections.abc import Sequence

from osd.gamma.goodput.goodput_row import GoodputRow

ROUNDS = 8
"""Rounds of asking a draft that rested. What rests is cold: a draft pass after a long rest takes four times, the next
one twice and the eighth 1.2 times what it takes in going on, and timing only two would decide that it never goes on."""
_ASK_AGAIN = 64
"""Tokens after which a request that a probe found bad is asked again."""
EARLY = 4
"""Tokens after its beginning, or after each so many, in which a request is asked: a good one has most to win then, and
the draft least to read. Credit waits for the next request to come."""


class Asking:
    """The row that is being asked. A new request is likelier to be another kind of text than one that was tried is to
    have changed."""

    def __init__(self) -> None:
        self._asked: GoodputRow | None = None

    def whom(self, rows: Sequence[GoodputRow], rooms: Sequence[int]) -> GoodputRow | None:
        """Return the row that is being asked, else one that was not asked lately; None where there is none."""
        asked = self._asked
        if asked and asked.tries % ROUNDS and asked in rows:
            return asked
        for row, room in zip(rows, rooms, strict=True):
            if room > ROUNDS and row.emitted >= row.ask_after and row.emitted % _ASK_AGAIN <= EARLY:
                return row
        return None

    def rest(self, rows: Sequence[GoodputRow]) -> int:
        """Return the plain rounds, each a token of every row, until there is a row to ask; 0 where there is one."""
        return min(map(_until_asked, rows))

    def only(self, rows: Sequence[GoodputRow], asked: GoodputRow, gamma: int) -> list[int]:
        """Note that a row is asked, and return each row's γ: so many tokens for this one, 0 for the others."""
        if gamma:
            asked.tries += 1
            asked.ask_after = asked.emitted + _ASK_AGAIN
        self._asked = asked
        return [gamma if row is asked else 0 for row in rows]


def _until_asked(row: GoodputRow) -> int:
    """Return the tokens until a row may be asked; 0 where it may be now."""
    first = max(row.emitted, row.ask_after)
    late = first % _ASK_AGAIN
    return first - row.emitted + (0 if late <= EARLY else _ASK_AGAIN - late)
