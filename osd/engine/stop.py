"""Where a text stops: end tokens, stop strings, length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from osd.engine.detokenizer import Detokenizer
from osd.engine.text_stream import TextStream
from osd.sequence import SequenceState


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
