"""Repeated n-grams: whether a request's text has already had a token after the same two tokens.

A target's text repeats its prompt and itself, and a draft that repeats what was there is right far oftener than its
probability says (docs/goodput.md). Only the request's own tokens are looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from weakref import WeakKeyDictionary

from osd.gamma.goodput.contexts import NO_CONTEXT, Around, Before, Peak, before_of, peak_of

REACH = 4096
"""Tokens at the end of a text that are indexed when it is first asked about: to index all of a longer prompt would take
milliseconds."""
_BELOW_ONE = 1 - 2**-40


def signal_of(peak: float, said: bool, around: Around = NO_CONTEXT, declined: int = -1) -> Peak:
    """Return the ``peak_echo`` signal with its context: a peak below 1, plus 1 where the text had the token there
    before."""
    return peak_of(min(peak, _BELOW_ONE) + said, around, declined)


class RepeatedNgrams:
    """Index of one request's three-token sequences."""

    __slots__ = ("_learned", "triples")

    def __init__(self) -> None:
        self.triples: set[Before] = set()
        """Each run of three tokens in the text."""
        self._learned = 0

    def learn(self, text: Sequence[int]) -> None:
        """Index the whole text up to now; what was indexed before is skipped."""
        new = max(self._learned, len(text) - REACH, 2)
        self.triples.update(zip(text[new - 2 :], text[new - 1 :], text[new:], strict=False))
        self._learned = len(text)

    def signal(self, peak: float, before: Before, token: int, greedy: bool) -> Peak:
        """Return ``peak_echo`` for a draft whose likeliest next token is ``token``; ``greedy``: the row is at
        temperature 0."""
        _, second, last = before
        return signal_of(peak, self.said(second, last, token), (*before, token), token if greedy else -1)

    def said(self, before: int, last: int, token: int) -> bool:
        """Return whether ``token`` followed ``before`` and ``last`` somewhere in the text."""
        return (before, last, token) in self.triples


class Spoken(Protocol):
    """A request with a text and its index of repeated n-grams."""

    tokens: list[int]

    @property
    def greedy(self) -> bool:
        """Whether it is decoded at temperature 0."""
        ...


_KEPT: WeakKeyDictionary[Spoken, RepeatedNgrams] = WeakKeyDictionary()
"""What was learned of the requests that are being decoded, as far as a rule asked."""


class BatchRepeats:
    """Repeated n-grams of the B rows whose chains are drafted together in one round, asked for after each draft pass.

    Nothing is done before the first question; then texts are indexed, and from there on it follows the chains.
    """

    __slots__ = ("_before", "_greedy", "_rows", "_triples", "heard")

    def __init__(self, rows: Sequence[Spoken]) -> None:
        self._rows = rows
        self._triples: list[set[Before]] = []
        self._greedy: list[bool] = []
        self._before: list[list[int]] = []
        """The last three tokens before what is drafted next, B each."""
        self.heard = 0
        """Tokens of each chain so far."""

    def hear(self, drafted: Sequence[list[int]]) -> None:
        """Append the chains' next tokens, B each."""
        if not self._triples:
            self._learn()
        for tokens in drafted:
            _, *later = self._before
            self._before = [*later, tokens]
        self.heard += len(drafted)

    def signals(self, peaks: Sequence[float], likeliest: list[int]) -> list[Peak]:
        """Return each row's ``peak_echo``, as :meth:`RepeatedNgrams.signal`, once the tokens before it were heard."""
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
