"""The text of one request as it grows: up to its end token, stop string or length, and shown once it can no longer
change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from osd.engine.detokenizer import Detokenizer, TokenDecoder
from storage.records import Request

if TYPE_CHECKING:
    from osd.sequence import SequenceState  # brings torch, and `osd --help` imports this module


class TextStream:
    """Turns the tokens that answer a request into text that can be shown at once."""

    def __init__(
        self, detokenizer: Detokenizer, request: Request, eos_ids: frozenset[int], hidden: frozenset[int] | None = None
    ) -> None:
        """``hidden``: tokens that the text does not show."""
        decoder = detokenizer.decoder(request.prompt_tokens, skip_special_tokens=request.skip_special_tokens)
        self._decoder = HidingDecoder(decoder, hidden) if hidden else decoder
        self._stops, self._include_stop = request.stop, request.include_stop_str_in_output
        self._special = {token: stop for stop in request.stop if (token := detokenizer.special.get(stop)) is not None}
        """Special tokens that are stop strings, which decoding may leave out."""
        self._end_tokens = end_tokens(request, eos_ids, detokenizer)
        self._masked = self._end_tokens - self._special.keys()
        self._going_on = request.min_tokens
        """Tokens still to come at which it does not end."""
        self.ended = False
        """Whether an end token or a stop string has come: nothing belongs to the text from there on."""
        self.stopped = False
        """Whether it was a stop string."""
        self.text = ""
        """Everything decoded so far, including what is held back."""
        self.shown = 0
        """Number of its characters that were handed out."""

    def push(self, tokens: Sequence[int]) -> str:
        """Return the text that these tokens add and that can no longer change."""
        if self.ended:
            return ""
        if self._going_on and tokens:
            tokens = self._go_on(tokens)
        end = next((place for place, token in enumerate(tokens) if token in self._end_tokens), None)
        self._read(tokens[:end])
        if end is not None and not self.ended:
            self._end(tokens[end] if self._include_stop else None)
        waiting = self.text[self.shown :]
        held = 0 if self.ended else max((overlap(waiting, stop) for stop in self._stops), default=0)
        return self._show(len(self.text) - held)

    def _read(self, tokens: Sequence[int]) -> None:
        """Append what tokens stand for, one by one where there are stop strings: which of two that overlap ends the
        text must not depend on the portions in which tokens come."""
        step = 1 if self._stops else max(1, len(tokens))
        for place in range(0, len(tokens), step):
            if not self.ended:
                self._add(self._decoder.push(tokens[place : place + step]))

    def finish(self) -> str:
        """Return what is left of the text, which is whole now."""
        if not self.ended:
            self._end()
        return self._show(len(self.text))

    def _go_on(self, tokens: Sequence[int]) -> Sequence[int]:
        """Append the first tokens, which end nothing; return the others. End tokens are masked there: where one comes,
        a grammar leaves nothing else, and the text ends."""
        first = tokens[: self._going_on]
        count = next((place for place, token in enumerate(first) if token in self._masked), len(first))
        self._going_on = self._going_on - count if count == len(first) else 0
        self.text += self._decoder.push(first[:count])
        return tokens[count:]

    def _end(self, token: int | None = None) -> None:
        """End the text, with the token that ends it where that is part of it."""
        text = "" if token is None or token in self._special else self._decoder.push([token])
        self._add(text + self._decoder.flush())
        if token is not None and not self.ended:
            self.text += self._special.get(token, "")
        self.ended = True

    def _add(self, text: str) -> None:
        """Append text, up to the first stop string."""
        before = len(self.text)
        self.text += text
        found = [
            (place, place + len(stop) if self._include_stop else place)
            for stop in self._stops if (place := self.text.find(stop, max(0, before - len(stop) + 1))) >= 0
        ]  # fmt: skip
        if found:
            self.text, self.ended, self.stopped = self.text[: min(found)[1]], True, True

    def _show(self, end: int) -> str:
        new, self.shown = self.text[self.shown : end], end
        return new


class HidingDecoder:
    """A decoder that leaves some tokens out."""

    def __init__(self, decoder: TokenDecoder, hidden: frozenset[int]) -> None:
        self._decoder, self._hidden = decoder, hidden

    def push(self, tokens: Sequence[int]) -> str:
        """Return the characters that the others complete."""
        return self._decoder.push([token for token in tokens if token not in self._hidden])

    def flush(self) -> str:
        """Return what is left at the text's end."""
        return self._decoder.flush()


def end_tokens(request: Request, eos_ids: frozenset[int], detokenizer: Detokenizer) -> frozenset[int]:
    """Return the tokens that end a request's text and are not in it: the target's own, unless they are to be ignored,
    ``stop_token_ids``, and special tokens that are given as stop strings, which no text shows."""
    own = frozenset() if request.ignore_eos else eos_ids
    if not request.stop and not request.stop_token_ids:
        return own
    special = [detokenizer.special[stop] for stop in request.stop if stop in detokenizer.special]
    return own.union(request.stop_token_ids, special)


def overlap(text: str, stop: str) -> int:
    """Return the length of the text's end that may be the beginning of a stop string."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)


class StopChecker:
    """Decides which of a round's tokens still belong to the text."""

    def __init__(self, tokenizer: Any, eos_ids: frozenset[int], *, apart: bool = False) -> None:
        """``apart``: see :class:`osd.engine.detokenizer.Detokenizer`."""
        self._detokenizer = None if tokenizer is None else Detokenizer(tokenizer, apart=apart)
        self.eos_ids = eos_ids

    def cut(self, row: SequenceState, tokens: Sequence[int]) -> tuple[list[int], str | None]:
        """Return the new tokens up to the end of the text, and ``stop``, ``length`` or None for how it ended."""
        kept = list(tokens[: row.end - row.length])
        for count, token in enumerate(kept, 1):
            if self._stops(row, token):
                return kept[:count], "stop"
        if row.length + len(kept) < row.end:
            return kept, None
        if row.stream:
            row.stream.finish()
        return kept, "stop" if row.stream and row.stream.stopped else "length"

    def text(self, row: SequenceState) -> str | None:
        """Return the output without special and end tokens, up to the first stop string; None without a tokenizer."""
        if self._detokenizer is None:
            return None
        stream: TextStream = row.stream or self._stream(row)
        if row.stream is None:
            stream.push(row.output)
        stream.finish()
        return stream.text

    def _stops(self, row: SequenceState, token: int) -> bool:
        request = row.request
        if not request.stop:
            return token in request.stop_token_ids or (token in self.eos_ids and not request.ignore_eos)
        row.stream = row.stream or self._stream(row)
        row.stream.push((token,))
        return bool(row.stream.ended)

    def _stream(self, row: SequenceState) -> TextStream:
        assert self._detokenizer is not None
        return TextStream(self._detokenizer, row.request, self.eos_ids)
