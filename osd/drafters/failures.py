"""What drafters raised: counted, logged at most once a minute a kind, and a drafter that keeps raising rests."""

from __future__ import annotations

import logging
import time
import traceback
from collections import Counter
from collections.abc import Sequence

from osd.sequence import SequenceState

log = logging.getLogger(__name__)

LONGEST = 1024
"""Most rounds for which a drafter rests."""
QUIET_SECONDS = 60.0
"""Seconds before the same error of the same drafter is logged again."""


class DraftFailures:
    """The failures of one engine's drafters, by name. After n in a row a drafter rests for 2ⁿ rounds."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """How often each drafter has raised."""
        self.doubtful: dict[str, SequenceState] = {}
        """Rows of which what drafters know is in doubt, by request: they have to join anew."""
        self._in_a_row: Counter[str] = Counter()
        self._rest: dict[str, int] = {}
        self._logged: dict[tuple[str, str], float] = {}

    def may_ask(self, name: str) -> bool:
        """Return whether a drafter is to be asked in this round; call it once a round."""
        left = self._rest.pop(name, 0) if self._rest else 0
        if left > 1:
            self._rest[name] = left - 1
        return not left

    def well(self, name: str) -> None:
        """Note a round in which a drafter raised nothing."""
        if self._in_a_row:
            self._in_a_row.pop(name, None)

    def note(self, name: str, error: Exception, rows: Sequence[SequenceState] = ()) -> None:
        """Note what a drafter raised; what it knows of these rows is in doubt."""
        self.doubtful |= {row.request.id: row for row in rows}
        self.counts[name] += 1
        self._in_a_row[name] += 1
        self._rest[name] = min(1 << self._in_a_row[name], LONGEST)
        key, now = (name, type(error).__name__), time.monotonic()
        if now - self._logged.get(key, -QUIET_SECONDS) >= QUIET_SECONDS:
            self._logged[key] = now
            self._log(*key, error)

    def _log(self, name: str, kind: str, error: Exception) -> None:
        """Log the kind of error and its place. The message may hold a text, and stays out."""
        frames = traceback.extract_tb(error.__traceback__)
        place = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
        message = "%s raised %s%s while drafting (%d times so far); decoding goes on without its draft"
        log.error(message, name, kind, place, self.counts[name], extra={"action": "draft_failed"})
