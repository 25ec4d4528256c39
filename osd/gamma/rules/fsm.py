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

from osd.gamma.base import Observation, RowByRow


class FsmRow:
    """The counter of one request."""

    __slots__ = ("_gamma", "_maximum")

    def __init__(self, initial: int, maximum: int) -> None:
        self._gamma, self._maximum = initial, maximum

    def next_gamma(self, batch: int) -> int:
        """Return the counter."""
        return self._gamma

    def observe(self, seen: Observation) -> None:
        """Set γ ← γ − 1 after a rejection, else γ + 1, within 0 and γ_max."""
        step = -1 if seen.rejected else 1
        self._gamma = min(self._maximum, max(0, self._gamma + step))


class FsmController(RowByRow):
    """The saturating counter rule. ``maximum`` is the paper's γ_max."""

    name: str = "fsm"

    def __init__(self, initial: int, maximum: int) -> None:
        self._initial, self._maximum = initial, maximum

    def start(self) -> FsmRow:
        """Return the state of a new request, which begins with ``initial``."""
        return FsmRow(self._initial, self._maximum)


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


GAMMA_MIN = 1


class HeuristicRow:
    """The γ of one request."""

    __slots__ = ("_gamma", "_maximum")

    def __init__(self, initial: int, maximum: int) -> None:
        self._gamma, self._maximum = max(GAMMA_MIN, initial), maximum

    def next_gamma(self, batch: int) -> int:
        """Return γ."""
        return self._gamma

    def observe(self, seen: Observation) -> None:
        """Set γ ← γ + 2 when all drafted tokens were accepted, however few there was room for; else γ − 1."""
        if not seen.drafted:
            return
        step = -1 if seen.rejected else 2
        self._gamma = min(self._maximum, max(GAMMA_MIN, self._gamma + step))


class HeuristicController(RowByRow):
    """The heuristic_transient rule of transformers."""

    name: str = "heuristic"

    def __init__(self, initial: int, maximum: int) -> None:
        self._initial, self._maximum = initial, maximum

    def start(self) -> HeuristicRow:
        """Return the state of a new request, which begins with ``initial``."""
        return HeuristicRow(self._initial, self._maximum)


class FixedRow:
    """State of one request: its gamma."""

    __slots__ = ("_gamma",)

    def __init__(self, gamma: int) -> None:
        self._gamma = gamma

    def next_gamma(self, batch: int) -> int:
        """Return the fixed gamma; see :class:`~osd.gamma.base.RowGamma`."""
        return self._gamma

    def observe(self, seen: Observation) -> None:
        """Do nothing: nothing is learned."""


class FixedController(RowByRow):
    """The fixed gamma rule: ``gamma`` tokens every round; 0 is plain decoding with the target alone."""

    name: str = "fixed"

    def __init__(self, gamma: int) -> None:
        self._gamma = gamma

    def start(self) -> FixedRow:
        """Return the state of a new request."""
        return FixedRow(self._gamma)
