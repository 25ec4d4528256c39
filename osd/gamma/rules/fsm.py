"""Rules that count: γ stays the same, or moves by a step or two after every round.

``fixed``: the same γ every round.

``fsm``: Method 2 of on-the-fly adaptation, a saturating counter, as in branch prediction (section 4.2): one up when
every drafted token was accepted, one down when one was refused, between 0 and ``maximum``. A round without a draft
refuses nothing, so a row at 0 tries one token in its next round.

``cache_fsm``: Method 3, a counter that moves with a cache of the request's tokens (section 4.2). An answer that repeats
its prompt or itself is easy to guess. The cache holds the tokens of the prompt and of all earlier rounds, and after a
round three rules add up: +1 where an accepted token was in the cache, −1 where none was, +1 where every drafted token
was accepted. A round without a draft has the target's own token alone to look at: it is up one if that was in the
cache, and stays at 0 otherwise.

``heuristic``: transformers' ``num_assistant_tokens_schedule="heuristic_transient"`` (candidate_generator.py): two more
tokens after a draft that was accepted whole, else one fewer, at least 1. transformers has no upper limit; here it is
``maximum``. Its ``"heuristic"`` also hands γ on to the next call; here requests run side by side, so each starts at
``initial``."""

from __future__ import annotations

from typing import ClassVar

from osd.gamma.base import Observation, RowByRow


class CountingRow:
    """A γ of one request that counts up and down; this one stays as it is."""

    __slots__ = ("_gamma", "_maximum")
    least: ClassVar[int] = 0

    def __init__(self, initial: int, maximum: int) -> None:
        self._gamma, self._maximum = max(self.least, initial), maximum

    def next_gamma(self, batch: int) -> int:
        """Return the counter; see :class:`~osd.gamma.base.RowGamma`."""
        return self._gamma

    def observe(self, seen: Observation) -> None:
        """Learn nothing."""

    def _move(self, step: int) -> None:
        """Count on by a step, within the least γ and the largest."""
        self._gamma = min(self._maximum, max(self.least, self._gamma + step))


class CountingController(RowByRow):
    """A rule that counts. ``maximum`` is the paper's γ_max."""

    row: ClassVar[type[CountingRow]] = CountingRow

    def __init__(self, initial: int, maximum: int) -> None:
        self._initial, self._maximum = initial, maximum

    def start(self) -> CountingRow:
        """Return the state of a new request, which begins with ``initial``."""
        return self.row(self._initial, self._maximum)


class FsmRow(CountingRow):
    """The counter of one request."""

    __slots__ = ()

    def observe(self, seen: Observation) -> None:
        """Set γ ← γ − 1 after a rejection, else γ + 1, within 0 and γ_max."""
        self._move(-1 if seen.rejected else 1)


class FsmController(CountingController):
    """The saturating counter rule."""

    name: str = "fsm"
    row = FsmRow


class CacheFsmRow(CountingRow):
    """The counter of one request, and the set of tokens in its text."""

    __slots__ = ("_cache",)

    def __init__(self, initial: int, maximum: int) -> None:
        super().__init__(initial, maximum)
        self._cache: set[int] | None = None

    def observe(self, seen: Observation) -> None:
        """Apply the three rules, then add the round's tokens to the cache; needs ``seen.text``."""
        before = len(seen.text) - seen.accepted - 1
        emitted = seen.text[max(0, before) :]
        if self._cache is None:
            self._cache = set(seen.text[: max(0, before)])  # the prompt
        judged = emitted[: seen.accepted] if seen.drafted else emitted
        known = not self._cache.isdisjoint(judged)
        self._move((1 if known else -1) + (seen.drafted > 0 and not seen.rejected))
        self._cache.update(emitted)


class CacheFsmController(CountingController):
    """The cache-aware counter rule."""

    name: str = "cache_fsm"
    row = CacheFsmRow


class HeuristicRow(CountingRow):
    """The γ of one request."""

    __slots__ = ()
    least = 1

    def observe(self, seen: Observation) -> None:
        """Set γ ← γ + 2 when all drafted tokens were accepted, however few there was room for; else γ − 1."""
        if seen.drafted:
            self._move(-1 if seen.rejected else 2)


class HeuristicController(CountingController):
    """The heuristic_transient rule of transformers."""

    name: str = "heuristic"
    row = HeuristicRow


class FixedController(CountingController):
    """The fixed gamma rule: ``gamma`` tokens every round; 0 is plain decoding with the target alone."""

    name: str = "fixed"

    def __init__(self, gamma: int) -> None:
        super().__init__(gamma, gamma)
