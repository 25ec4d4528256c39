"""From tokens to text, one token at a time: one way for whole texts, for streams, and where stop strings are searched.

    text = decode(prompt + output) less decode(prompt)

A character once complete never changes. With most tokenizers a text is what its tokens stand for, joined, and only its
first one may stand for something else there: what each stands for is looked up as bytes, and those are read as UTF-8.
Others are decoded in windows. Bytes that never become a character are U+FFFD: with byte-level BPE one for a sequence
that breaks off, with byte fallback one for each byte, as SentencePiece has it. (There tokenizers' own decoder replaces
all characters of a run of bytes, the complete ones too.)
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

HALF = "\ufffd"
CONTEXT = 8
"""Tokens of the prompt that are decoded with the first ones of the output, where texts are decoded in windows."""
WAIT = 32
"""Most tokens that wait there for the rest of a character."""
JOINING = {"ByteFallback", "ByteLevel", "Fuse", "Metaspace", "WordPiece"}
"""Decoders of the tokenizers library by which a token stands for the same wherever it is, unless it is the first."""
BYTE = re.compile(r"<0x([0-9A-F]{2})>")
UNTIDY = re.compile(r"[ .?!,'ntmsver]*\Z")
"""What transformers' tidying of spaces may still change when more comes: it looks at no other characters."""


def each_byte(error: UnicodeError) -> tuple[str, int]:
    """Replace each byte that belongs to no character, as an error handler of codecs."""
    assert isinstance(error, UnicodeDecodeError)
    return HALF * (error.end - error.start), error.end


codecs.register_error("osd.each_byte", each_byte)


class TokenDecoder(Protocol):
    """Turns the tokens after a prompt into characters that no later token changes."""

    def push(self, tokens: Sequence[int]) -> str:
        """Return the characters that these tokens complete."""

    def flush(self) -> str:
        """Return what is left at the text's end."""


class Detokenizer:
    """A tokenizer, and what its tokens stand for."""

    def __init__(self, tokenizer: Any, *, apart: bool = False) -> None:
        """``apart``: outputs are texts of their own and do not go on from a prompt, as an encoder-decoder's."""
        self._apart = apart
        below = tokenizer.backend_tokenizer if is_fast(tokenizer) else None
        rule = json.loads(below.decoder.__getstate__()) if below and below.decoder else {"type": "Sequence"}
        self._tokenizer, self._below, self._size = tokenizer, below, len(tokenizer)
        self.joins = below is not None and joins(rule)
        """Whether a text is what its tokens stand for, joined."""
        self.errors = "osd.each_byte" if "ByteFallback" in json.dumps(rule) else "replace"
        """How bytes that are no character are read."""
        self.tidies = self.joins and tidies(tokenizer)
        """Whether transformers tidies the spaces of a text."""
        self.special = special_tokens(tokenizer)
        """Text of a special token -> its id."""
        self._anchor = next((i for i in range(self._size) if self.decode([i]).strip(" " + HALF)), 0)
        self._data = {skip: TokenData(self, skip) for skip in (True, False)}

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Decode tokens as a text of their own, but for ids that the tokenizer lacks. transformers' way takes six times
        as long as the tokenizer below it."""
        if self._below is not None:
            return str(self._below.decode(tokens, skip_special_tokens=skip_special_tokens))
        known = [token for token in tokens if token < self._size]
        return str(self._tokenizer.decode(known, skip_special_tokens=skip_special_tokens))

    def data(self, *, skip_special_tokens: bool) -> TokenData:
        """Return what tokens stand for within a text, as UTF-8."""
        return self._data[skip_special_tokens]

    def read(self, token: int, *, skip_special_tokens: bool, first: bool) -> bytes:
        """Find out what a token stands for, as UTF-8, within a text or as its ``first``."""
        before = [] if first else [self._anchor]
        text = self.decode([*before, token], skip_special_tokens=skip_special_tokens)[len(self.decode(before)) :]
        if HALF not in text:
            return text.encode()
        return half_bytes(str(self._tokenizer.convert_ids_to_tokens(token))) or text.encode()

    def tidied(self, text: str) -> str:
        """Tidy the spaces of a text, as transformers does."""
        return str(self._tokenizer.clean_up_tokenization(text))

    def decoder(self, prompt: Sequence[int], *, skip_special_tokens: bool = True) -> TokenDecoder:
        """Return a decoder of what comes after a prompt."""
        before = () if self._apart else prompt
        return (JoiningDecoder if self.joins else WindowDecoder)(self, before, skip_special_tokens)


class TokenData(dict[int, bytes]):
    """What tokens stand for within a text, as far as it was asked for."""

    def __init__(self, detokenizer: Detokenizer, skip_special_tokens: bool) -> None:
        super().__init__()
        self._detokenizer, self._skip = detokenizer, skip_special_tokens

    def __missing__(self, token: int) -> bytes:
        self[token] = data = self.of(token, first=False)
        return data

    def of(self, token: int, *, first: bool) -> bytes:
        """Find out what a token stands for; see :meth:`Detokenizer.read`."""
        return self._detokenizer.read(token, skip_special_tokens=self._skip, first=first)


class JoiningDecoder:
    """Joins what tokens stand for. A push costs as much as its own tokens."""

    def __init__(self, detokenizer: Detokenizer, prompt: Sequence[int], skip_special_tokens: bool) -> None:
        self._data = detokenizer.data(skip_special_tokens=skip_special_tokens)
        self._tidied = detokenizer.tidied if detokenizer.tidies else None
        self._untidy = ""
        self._utf8 = codecs.getincrementaldecoder("utf-8")(detokenizer.errors)
        before = b""
        for token in reversed(prompt):
            if len(before) >= 3:  # so many bytes may wait for a character's last
                break
            before = self._data[token] + before
        self._begun = bool(before)
        self._utf8.decode(before)
        self._half = self._utf8.getstate()[0].decode(errors=detokenizer.errors)
        """What the prompt's own text shows for a character that it leaves incomplete."""

    def push(self, tokens: Sequence[int]) -> str:
        """Return the characters that these tokens complete."""
        data = [self._data[token] for token in tokens]
        if not self._begun:
            self._begin(tokens, data)
        text = self._less_prompt(self._utf8.decode(b"".join(data)))
        return text if self._tidied is None else self._tidy(text, UNTIDY)

    def flush(self) -> str:
        """Return what is left at the text's end."""
        text = self._less_prompt(self._utf8.decode(b"", final=True))
        return text if self._tidied is None else self._tidy(text, END)

    def _begin(self, tokens: Sequence[int], data: list[bytes]) -> None:
        """Read the text's first token as such: there it may lose a space."""
        place = next((place for place, found in enumerate(data) if found), None)
        if place is not None:
            data[place], self._begun = self._data.of(tokens[place], first=True), True

    def _less_prompt(self, text: str) -> str:
        if self._half and text:
            text, self._half = text.removeprefix(self._half), ""
        return text

    def _tidy(self, text: str, held: re.Pattern[str]) -> str:
        assert self._tidied
        text = self._untidy + text
        end = held.search(text).start()  # type: ignore[union-attr]  # both match the empty end
        self._untidy = text[end:]
        return self._tidied(text[:end])


END = re.compile(r"\Z")


class WindowDecoder:
    """Decodes tokens together with those before them, as vLLM does: right with any tokenizer whose texts change near
    their ends alone."""

    def __init__(self, detokenizer: Detokenizer, prompt: Sequence[int], skip_special_tokens: bool) -> None:
        self._detokenizer, self._skip = detokenizer, skip_special_tokens
        self._tokens = list(prompt[-CONTEXT:])
        self._begin, self._read = 0, len(self._tokens)
        """Tokens from ``_begin`` on are decoded again, so that spaces between tokens come out; up to ``_read`` their
        text is known."""

    def push(self, tokens: Sequence[int]) -> str:
        """Return the characters that these tokens complete."""
        self._tokens += tokens
        text = self.flush()
        if not text or (text.endswith(HALF) and len(self._tokens) - self._read < WAIT):
            return ""
        self._begin, self._read = self._read, len(self._tokens)
        return text

    def flush(self) -> str:
        """Return what is left at the text's end."""
        return self._decode(None)[len(self._decode(self._read)) :]

    def _decode(self, end: int | None) -> str:
        return self._detokenizer.decode(self._tokens[self._begin : end], skip_special_tokens=self._skip)


def joins(rule: dict[str, Any]) -> bool:
    """Return whether a decoder of the tokenizers library joins what tokens stand for; see ``JOINING``."""
    if rule["type"] == "Sequence":
        return all(map(joins, rule.get("decoders", ())))
    if rule["type"] == "Strip":
        return bool(rule["start"] <= 1 and rule["stop"] == 0)
    return rule["type"] in JOINING or (rule["type"] == "Replace" and len(rule["pattern"].get("String", "")) == 1)


def is_fast(tokenizer: Any) -> bool:
    """Return whether a tokenizer is one of the `tokenizers` library in transformers' dress."""
    from transformers import PreTrainedTokenizerFast  # not at once: `osd --help` imports this module

    return isinstance(tokenizer, PreTrainedTokenizerFast)


def tidies(tokenizer: PreTrainedTokenizerFast) -> bool:
    """Return whether transformers tidies the spaces of what this tokenizer decodes."""
    forced = tokenizer.clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output
    bpe = type(tokenizer.backend_tokenizer.model).__name__ == "BPE"
    return bool(tokenizer.clean_up_tokenization_spaces and (forced or not bpe))


def special_tokens(tokenizer: Any) -> dict[str, int]:
    """Return the ids of a tokenizer's special tokens by their text."""
    if is_fast(tokenizer):
        added = tokenizer.backend_tokenizer.get_added_tokens_decoder()
        return {token.content: i for i, token in added.items() if token.special}
    return dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True))


def half_bytes(token: str) -> bytes | None:
    """Return the bytes of a token's name, as byte-level BPE and SentencePiece's byte fallback spell it."""
    if match := BYTE.fullmatch(token):
        return bytes.fromhex(match[1])
    table = byte_letters()
    return bytes(table[letter] for letter in token) if all(letter in table for letter in token) else None


@cache
def byte_letters() -> dict[str, int]:
    """Return GPT-2's spelling: printable bytes as themselves, the others as letters from U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(0x100) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(0x100 + i): byte for i, byte in enumerate(rest)}
