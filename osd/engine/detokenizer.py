"""Incremental detokenization: never half a character, never the beginning of a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

HALF = "\ufffd"


class TextStream:
    """Turns one request's tokens into text that can be shown at once. A push costs as much as its own tokens."""

    def __init__(self, tokenizer: Any, stops: Sequence[str], *, special: bool = False) -> None:
        """Start with no tokens; with ``special``, special ones are text as well."""
        self._text, self._stops = decoding(tokenizer, special=special), stops
        self._tokens: list[int] = []
        self._begin = self._read = 0
        """Tokens from ``_begin`` on are decoded again, so that spaces between tokens come out; up to ``_read`` their
        text is known."""
        self.text = ""
        """Everything decoded so far, including what is held back."""
        self.shown = 0
        """Number of its characters that were handed out."""

    def push(self, tokens: Sequence[int]) -> str:
        """Return the text that these tokens add and that can no longer change."""
        self._tokens += tokens
        known, now = self._decode(self._begin, self._read), self._decode(self._begin, None)
        if len(now) > len(known) and not now.endswith(HALF):
            self.text += now[len(known) :]
            self._begin, self._read = self._read, len(self._tokens)
        waiting = self.text[self.shown :]
        held = max((overlap(waiting, stop) for stop in self._stops), default=0)
        return self._show(len(self.text) - held)

    def finish(self, text: str) -> str:
        """Return what is left of the whole text once it is known."""
        if not text.startswith(self.text[: self.shown]):
            return ""
        self.text = text
        return self._show(len(text))

    def _decode(self, begin: int, end: int | None) -> str:
        return self._text(self._tokens[begin:end])

    def _show(self, end: int) -> str:
        new, self.shown = self.text[self.shown : end], end
        return new


def decoding(tokenizer: Any, *, special: bool = False) -> Callable[[list[int]], str]:
    """Return a function that decodes tokens, leaving special ones out unless ``special``. transformers' own way takes
    six times as long as the tokenizer below it, which decodes alike unless spaces are to be tidied; a stream asks twice
    a round."""
    from transformers import PreTrainedTokenizerFast

    if isinstance(tokenizer, PreTrainedTokenizerFast) and not tokenizer.clean_up_tokenization_spaces:
        below = tokenizer.backend_tokenizer
        return lambda tokens: str(below.decode(tokens, skip_special_tokens=not special))
    return lambda tokens: str(tokenizer.decode(tokens, skip_special_tokens=not special))


def overlap(text: str, stop: str) -> int:
    """Return the length of the text's end that may be the beginning of a stop string; all from a whole one on."""
    if stop in text:
        return len(text) - text.index(stop)
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)
