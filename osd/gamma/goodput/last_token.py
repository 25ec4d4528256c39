"""A row that decodes alone: its last tokens tell whether a draft is worth beginning, before a pass is made.

While it drafts it skips rounds after tokens that speak against it; while it rests it wakes after one good enough.
Several rows draft and rest together, whatever each stands after.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from osd.gamma.goodput.goodput_row import GoodputRow
from osd.gamma.goodput.weigher import Weigher

SKIPS = 16
"""Rounds out of which a row drafts in one although its last tokens speak against drafting: what is known of such tokens
may have become wrong."""


class LastToken:
    """What is known of the row's last tokens, and how long that is believed."""

    def __init__(self, weigher: Weigher) -> None:
        self._weigher = weigher
        self._wakes = inf
        """The odds after its last tokens with which the row drafts though it rests."""
        self._skipped = 0
        """Rounds that were skipped since one was not."""

    def weighed(self, rows: Sequence[GoodputRow], settled: bool, entry: float) -> bool:
        """Return whether its last tokens alone keep a lone row from drafting, and note the odds from which on it wakes.
        ``settled``: it drafts, or something else keeps it from that; ``entry``: the tokens it must hope for."""
        self._wakes = inf
        if settled or len(rows) > 1:
            return False
        self._wakes = self._weigher.pays_from(rows[0], entry)
        if self._wakes > 1.0 or not self.skips():
            return False
        self._wakes = inf
        return True

    def skips(self) -> bool:
        """Count a round, and return whether it goes without a draft for its last tokens: all but one in ``SKIPS``."""
        self._skipped = (self._skipped + 1) % SKIPS
        return self._skipped > 0

    def wakes(self, rows: Sequence[GoodputRow]) -> bool:
        """Return whether a lone row that rests has come to a token after which its draft is good enough."""
        return self._wakes < inf and self._weigher.odds_after(rows[0]) >= self._wakes
