"""Whether a request's text said a token in the same place before: after the same two tokens.

A target's text repeats its prompt and itself, and a draft that says again what was said is right far oftener than its
probability tells (docs/goodput.md). Only the request's own tokens are looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from weakref import WeakKeyDictionary

from osd.gamma.goodput.contexts import NO_CONTEXT, Around, Before, Peak, before_of, peak_of

REACH = 4096
"""Last tokens of a text that are looked at when it is first asked about: of a longer prompt, the rest would take
milliseconds."""
_BELOW_ONE = 1 - 2**-40


def signal_of(peak: float, said: bool, around: Around = NO_CONTEXT, declined: int = -1) -> Peak:
    """``peak_echo``: a peak below 1, and 1 more where the text said the token before; with its context."""
    return peak_of(min(peak, _BELOW_ONE) + said, around, declined)


class RepeatedNgrams:
    """What one request's text said so far."""

    __slots__ = ("_learned", "triples")

    def __init__(self) -> None:
        self.triples: set[Before] = set()
        """Each three tokens that stand in it one after another."""
        self._learned = 0

    def learn(self, text: Sequence[int]) -> None:
        """The whole text up to now; what was learned before is skipped."""
        new = max(self._learned, len(text) - REACH, 2)
        self.triples.update(zip(text[new - 2 :], text[new - 1 :], text[new:], strict=False))
        self._learned = len(text)

    def signal(self, peak: float, before: Before, token: int, greedy: bool) -> Peak:
        """``peak_echo`` of a draft whose likeliest token after these is ``token``, by a row at temperature 0 or not."""
        _, second, last = before
        return signal_of(peak, self.said(second, last, token), (*before, token), token if greedy else -1)

    def said(self, before: int, last: int, token: int) -> bool:
        """Whether ``token`` followed ``before`` and ``last`` somewhere in it."""
        return (before, last, token) in self.triples


class Spoken(Protocol):
    """A request with a text."""

    tokens: list[int]

    @property
    def greedy(self) -> bool:
        """Whether it is at temperature 0."""
        ...


_KEPT: WeakKeyDictionary[Spoken, RepeatedNgrams] = WeakKeyDictionary()
"""What was learned of the requests that are being decoded, as far as a rule asked."""


class BatchRepeats:
    """Of the B rows whose chains grow together in one round, asked about after each draft pass: nothing is done before
    the first time, then texts are learned, and from there on it follows the chains."""

    __slots__ = ("_before", "_greedy", "_rows", "_triples", "heard")

    def __init__(self, rows: Sequence[Spoken]) -> None:
        self._rows = rows
        self._triples: list[set[Before]] = []
        self._greedy: list[bool] = []
        self._before: list[list[int]] = []
        """The last three tokens before what is drafted next, B each."""
        self.heard = 0
        """Tokens of the chains so far."""

    def hear(self, drafted: Sequence[list[int]]) -> None:
        """The chains' next tokens, B each."""
        if not self._triples:
            self._learn()
        for tokens in drafted:
            _, *later = self._before
            self._before = [*later, tokens]
        self.heard += len(drafted)

    def signals(self, peaks: Sequence[float], likeliest: list[int]) -> list[Peak]:
        """``peak_echo`` of each row, as :meth:`RepeatedNgrams.signal`, once all that comes before was heard."""
        thirds, seconds, lasts = self._before
        threes = zip(peaks, self._triples, zip(seconds, lasts, likeliest, strict=True), strict=True)
        values = [(_BELOW_ONE if peak > _BELOW_ONE else peak) + (three in said) for peak, said, three in threes]
        declined = likeliest
        if not all(self._greedy):
            declined = [token if greedy else -1 for token, greedy in zip(likeliest, self._greedy, strict=True)]
        return list(zip(values, thirds, seconds, lasts, likeliest, declined, strict=True))

    def _learn(self) -> None:
        kept = [_KEPT.setdefault(row, RepeatedNgrams()) for row in self._rows]
        for row, repeats in zip(self._rows, kept, strict=True):
            repeats.learn(row.tokens)
        self._triples = [repeats.triples for repeats in kept]
        self._greedy = [row.greedy for row in self._rows]
        self._before = [list(tokens) for tokens in zip(*[before_of(row.tokens) for row in self._rows], strict=True)]
