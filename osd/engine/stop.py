"""Where a text stops: end tokens, stop strings, length."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from osd.sequence import SequenceState

SLACK = 16
"""Tokens before the new ones that are decoded with them: a stop string may have begun there, and a
character may be split over tokens."""


class StopChecker:
    """Decides which of a round's tokens still belong to the text."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None, eos_ids: frozenset[int]) -> None:
        self.tokenizer, self.eos_ids = tokenizer, eos_ids

    def cut(self, row: SequenceState, tokens: Sequence[int]) -> tuple[list[int], str | None]:
        """Return the new tokens up to the end of the text, and ``stop``, ``length`` or None for how it ended."""
        kept = list(tokens[: row.end - row.length])
        for count in range(1, len(kept) + 1):
            if self._stops(row, kept[:count]):
                return kept[:count], "stop"
        return kept, "length" if row.length + len(kept) == row.end else None

    def text(self, row: SequenceState) -> str | None:
        """Return the output without special tokens, up to the first stop string; None without a tokenizer."""
        if self.tokenizer is None:
            return None
        text = self._decode(row.output)
        found = [position for stop in row.request.stop if (position := text.find(stop)) >= 0]
        return text[: min(found)] if found else text

    def _stops(self, row: SequenceState, tokens: list[int]) -> bool:
        request = row.request
        if tokens[-1] in request.stop_token_ids or (tokens[-1] in self.eos_ids and not request.ignore_eos):
            return True
        if not request.stop or len(row.output) + len(tokens) <= request.min_tokens:
            return False
        window = SLACK + max(len(stop.encode()) for stop in row.request.stop)
        tail = self._decode((row.output + tokens)[-window:])
        return any(stop in tail for stop in row.request.stop)

    def _decode(self, tokens: Sequence[int]) -> str:
        assert self.tokenizer is not None
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True))
