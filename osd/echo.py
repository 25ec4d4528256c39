"""Whether a request's text said a token in the same place before: after the same two tokens.

A target's text repeats its prompt and itself, and a draft that says again what was said is right far oftener than its
probability tells (docs/goodput.md). Only the request's own tokens are looked at.
"""

from __future__ import annotations

from collections.abc import Sequence

from osd.gamma.contexts import NO_CONTEXT, Around, Before, Peak

REACH = 4096
"""Last tokens of a text that are looked at when it is first asked about: of a longer prompt, the rest would take
milliseconds."""
_BITS = 24
"""Of a token id."""
_BELOW_ONE = 1 - 2**-40


def signal_of(peak: float, said: bool, around: Around = NO_CONTEXT, token: int = -1) -> Peak:
    """``peak_echo``: a peak below 1, and 1 more where the text said the token before; with its context."""
    return Peak(min(peak, _BELOW_ONE) + said, around, token)


class Echo:
    """What one request's text said so far."""

    __slots__ = ("_learned", "_triples")

    def __init__(self) -> None:
        self._triples: set[int] = set()
        self._learned = 0

    def learn(self, text: Sequence[int]) -> None:
        """The whole text up to now; what was learned before is skipped."""
        for i in range(max(self._learned, len(text) - REACH, 2), len(text)):
            self._triples.add((text[i - 2] << _BITS | text[i - 1]) << _BITS | text[i])
        self._learned = len(text)

    def signal(self, peak: float, before: Before, token: int, greedy: bool) -> Peak:
        """``peak_echo`` of a draft whose likeliest token after these is ``token``, by a row at temperature 0 or not."""
        _, second, last = before
        return signal_of(peak, self.said(second, last, token), (*before, token), token if greedy else -1)

    def said(self, before: int, last: int, token: int) -> bool:
        """Whether ``token`` followed ``before`` and ``last`` somewhere in it."""
        return (before << _BITS | last) << _BITS | token in self._triples
