"""Single tokens as text and as bytes, for log-probabilities."""

from __future__ import annotations

from osd.engine.detokenizer import HALF, Detokenizer

LEAST = -9999.0
"""The number that replaces −∞, which JSON lacks, as in OpenAI's answers."""


def floor(logprob: float | None) -> float | None:
    """Return a log-probability as JSON can hold it; None of None."""
    return None if logprob is None else max(logprob, LEAST)


class TokenText:
    """The text of single tokens, as they stand within a text."""

    def __init__(self, detokenizer: Detokenizer) -> None:
        self._detokenizer, self._data = detokenizer, detokenizer.data(skip_special_tokens=False)

    def __call__(self, token: int) -> tuple[str, list[int] | None]:
        """Return a token's text and its UTF-8 bytes; None where it is part of a character and its bytes are unknown."""
        data = self._data[token]
        text = data.decode(errors=self._detokenizer.errors)
        return text, list(data) if self._detokenizer.joins or HALF not in text else None
