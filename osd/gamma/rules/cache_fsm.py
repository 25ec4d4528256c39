"""Method 3 of on-the-fly adaptation: a counter that moves with a cache of the request's tokens (section 4.2).

An answer that repeats its prompt or itself is easy to guess. The cache holds the tokens of the prompt and of all
earlier rounds, and after a round three rules add up:

    +1  an accepted token was in the cache
    −1  none was
    +1  every drafted token was accepted

A round without a draft has the target's own token alone to look at: it is up one if that was in the cache, and stays
at 0 otherwise.
"""

from __future__ import annotations

from osd.gamma.base import Observation, RowByRow


class CacheFsmRow:
    """The counter of one request, and the set of tokens in its text."""

    __slots__ = ("_cache", "_gamma", "_maximum")

    def __init__(self, initial: int, maximum: int) -> None:
        self._gamma, self._maximum = initial, maximum
        self._cache: set[int] | None = None

    def next_gamma(self, batch: int) -> int:
        """Return the counter."""
        return self._gamma

    def observe(self, seen: Observation) -> None:
        """Apply the three rules, then add the round's tokens to the cache; needs ``seen.text``."""
        before = len(seen.text) - seen.accepted - 1
        emitted = seen.text[max(0, before) :]
        if self._cache is None:
            self._cache = set(seen.text[: max(0, before)])  # the prompt
        judged = emitted[: seen.accepted] if seen.drafted else emitted
        self._move(known=not self._cache.isdisjoint(judged), seen=seen)
        self._cache.update(emitted)

    def _move(self, known: bool, seen: Observation) -> None:
        step = 1 if known else -1
        if seen.drafted and not seen.rejected:
            step += 1
        self._gamma = min(self._maximum, max(0, self._gamma + step))


class CacheFsmController(RowByRow):
    """The cache-aware counter rule. ``maximum`` is the paper's γ_max."""

    name: str = "cache_fsm"

    def __init__(self, initial: int, maximum: int) -> None:
        self._initial, self._maximum = initial, maximum

    def start(self) -> CacheFsmRow:
        """Return the state of a new request, which begins with ``initial``."""
        return CacheFsmRow(self._initial, self._maximum)
