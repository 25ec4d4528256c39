"""Rate limits of a key: requests and tokens a minute, counted in this process."""

from __future__ import annotations

import time
from collections.abc import Callable

MINUTE = 60.0


class TokenBucket:
    """A token bucket of one minute's worth, refilled continuously. Taking after the fact may leave it in debt."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.size, self._clock = per_minute, clock
        self._level, self._at = float(per_minute), clock()

    @property
    def level(self) -> float:
        """The present amount."""
        now = self._clock()
        self._level = min(float(self.size), self._level + (now - self._at) * self.size / MINUTE)
        self._at = now
        return self._level

    def wait(self, amount: float = 1.0) -> float:
        """Return the seconds until ``amount`` is available; 0 where it is."""
        return max(0.0, amount - self.level) * MINUTE / self.size

    def take(self, amount: float) -> None:
        """Take an amount, whether it is available or not."""
        self._level = self.level - amount
