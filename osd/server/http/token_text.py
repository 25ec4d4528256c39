"""Single tokens as text and as bytes, for log-probabilities."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from osd.engine.detokenizer import HALF

LEAST = -9999.0
"""The number that replaces −∞, which JSON lacks, as in OpenAI's answers."""
BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def floor(logprob: float | None) -> float | None:
    """Return a log-probability as JSON can hold it; None of None."""
    return None if logprob is None else max(logprob, LEAST)


class TokenText:
    """The text of single tokens."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, tuple[str, list[int] | None]] = {}

    def __call__(self, token: int) -> tuple[str, list[int] | None]:
        """Return a token's text and its UTF-8 bytes; None where it is part of a character and its bytes are unknown."""
        if token not in self._known:
            self._known[token] = self._read(token)
        return self._known[token]

    def _read(self, token: int) -> tuple[str, list[int] | None]:
        text = str(self._tokenizer.decode([token]))
        if HALF not in text:
            return text, list(text.encode())
        return text, half_bytes(str(self._tokenizer.convert_ids_to_tokens(token)))


def half_bytes(token: str) -> list[int] | None:
    """Return the bytes of a token's name, as byte-level BPE and SentencePiece's byte fallback spell it."""
    if match := BYTE.fullmatch(token):
        return [int(match[1], 16)]
    table = byte_letters()
    return [table[letter] for letter in token] if all(letter in table for letter in token) else None


@cache
def byte_letters() -> dict[str, int]:
    """Return GPT-2's spelling: printable bytes as themselves, the others as letters from U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(0x100) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(0x100 + i): byte for i, byte in enumerate(rest)}
