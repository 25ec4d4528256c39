"""One request under the goodput rule: what it drafted and emitted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from osd.gamma.base import Observation
from osd.gamma.goodput.contexts import Before, before_of

NOWHERE = -1
"""The place of a row that is in no round."""


class Judge(Protocol):
    """Where verdicts are weighed: :class:`osd.gamma.goodput.weigher.Weigher`."""

    tally: Tally

    def verdict(self, place: int, drafted: int, accepted: int, chances: Sequence[float] = ()) -> None:
        """Learn the verdict on the draft of the row at this place. ``chances``: see
        :class:`osd.gamma.base.Observation`."""
        ...


class GoodputRow:
    """One request."""

    __slots__ = ("_judge", "_text", "ask_after", "declined", "emitted", "place", "tries")

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._text: Sequence[int] = ()
        self.place = NOWHERE
        """Its line on the desk."""
        self.declined = -1
        """The token that this round's draft was not given, if it is known; the target says it, or another, there."""
        self.emitted = 0
        """Tokens so far."""
        self.tries = 0
        """Rounds in which it was probed."""
        self.ask_after = 0
        """Tokens before which it is not probed again."""

    @property
    def before(self) -> Before:
        """The text's last three tokens, after which comes what is drafted next."""
        return before_of(self._text)

    def observe(self, seen: Observation) -> None:
        """Pass on the verdict on a round's draft, and count what it emitted."""
        drafted, emitted, tally = seen.drafted, seen.accepted + 1, self._judge.tally
        if self.declined >= 0 and seen.accepted == drafted:
            self._judge.verdict(self.place, drafted + 1, seen.accepted + (self.declined == seen.text[-1]))
        elif drafted:
            self._judge.verdict(self.place, drafted, seen.accepted, seen.chances)
        self.declined = -1
        self.emitted += emitted
        self._text = seen.text
        tally.rows += 1
        tally.drafted += drafted
        tally.emitted += emitted


class Tally:
    """What the rows of some rounds drafted and emitted."""

    __slots__ = ("begun", "drafted", "emitted", "passes", "rounds", "rows")

    def __init__(self) -> None:
        self.rounds = 1
        self.begun = 0
        """Rounds with draft passes."""
        self.rows = self.passes = self.drafted = self.emitted = 0
        """Sums over the rounds."""
