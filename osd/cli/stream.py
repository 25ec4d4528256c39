"""Text as it comes out: never half a character, never the beginning of a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

HALF = "\ufffd"


class TextStream:
    """Turns one request's tokens into text that can be shown at once."""

    def __init__(self, tokenizer: Any, stops: Sequence[str]) -> None:
        self._tokenizer, self._stops = tokenizer, stops
        self._tokens: list[int] = []
        self._shown = ""

    def push(self, tokens: Sequence[int]) -> str:
        """The text that these tokens add and that can no longer change."""
        self._tokens += tokens
        text = str(self._tokenizer.decode(self._tokens, skip_special_tokens=True)).rstrip(HALF)
        held = max((overlap(text, stop) for stop in self._stops), default=0)
        return self._show(text[: len(text) - held])

    def finish(self, text: str) -> str:
        """What is left of the whole text once it is known."""
        return self._show(text)

    def _show(self, text: str) -> str:
        if not text.startswith(self._shown):
            return ""
        new, self._shown = text[len(self._shown) :], text
        return new


def overlap(text: str, stop: str) -> int:
    """Characters from which the text's end may be a stop string that begins: all from a whole one on."""
    if stop in text:
        return len(text) - text.index(stop)
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)
