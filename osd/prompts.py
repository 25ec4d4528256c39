"""Reading files of prompts: JSON lines, plain or compressed, a ``prompt`` field in each.

A broken line does not end the file: it comes out as a BadPromptFile that names its number, and the
lines after it go on.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeVar, cast

from osd.chat_template import Chat, ChatTemplate
from storage.errors import BadPromptFile, BadRequest

T = TypeVar("T")


def _open_zstandard(path: Path) -> IO[bytes]:
    import pyarrow as pa

    return io.BufferedReader(pa.input_stream(str(path), compression="zstd"))


OPENERS: dict[str, Callable[[Path], Any]] = {
    ".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, ".zst": _open_zstandard,
}  # fmt: skip
"""How compressed files are opened, by the end of their names."""
UNREADABLE = OSError, EOFError, zlib.error, lzma.LZMAError
"""What reading a file raises that is not whole."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One line of a file of prompts."""

    text: str
    """The prompt; where the line has a ``context``, that stands before it, an empty line between."""
    line: int
    """The line's number, counting from 1."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """The line's other fields (``id``, ``route``, ``tenant``, …) as they stand in the file."""


def read_prompts(path: Path) -> Iterator[Prompt | BadPromptFile]:
    """Yield the prompts of a .jsonl or .jsonl.gz file, in order; a line that cannot be used comes out as its error.

    Raises BadPromptFile when the file cannot be read at all.
    """
    return read_lines(path, read_line)


def read_lines(path: Path, read: Callable[[Path, int, bytes], T]) -> Iterator[T]:
    """Yield what ``read`` makes of each line of a file that is not empty, given the line's number from 1.

    Raises BadPromptFile when the file cannot be read.
    """
    number = 0
    try:
        with open_bytes(path) as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield read(path, number, line)
    except UNREADABLE as error:
        raise unreadable(path, number, error) from None


def unreadable(path: Path, number: int, error: Exception) -> BadPromptFile:
    """Return the error for a file that cannot be read any further."""
    reason = getattr(error, "strerror", None) or error
    return BadPromptFile(path=path, reason=f"cannot be read after line {number} ({reason})")


def open_bytes(path: Path) -> IO[bytes]:
    """Open the file's bytes, uncompressed where its name ends in .gz, .bz2, .xz or .zst."""
    return cast(IO[bytes], OPENERS[path.suffix](path)) if path.suffix in OPENERS else path.open("rb")


def read_line(path: Path, number: int, line: bytes) -> Prompt | BadPromptFile:
    """Parse one line: return its prompt, or what is wrong with it."""
    try:
        fields = json.loads(line)
    except ValueError as error:
        return broken(path, number, f"is not JSON: {error}")
    if not isinstance(fields, dict):
        return broken(path, number, "is not a JSON object")
    if not isinstance(fields.get("prompt"), str) or not fields["prompt"].strip():
        return broken(path, number, 'has no "prompt" with text in it')
    rest = {name: value for name, value in fields.items() if name not in ("prompt", "context")}
    return Prompt(join(fields.get("context"), fields["prompt"]), number, rest)


def join(context: Any, prompt: str) -> str:
    """Join context and prompt to one text."""
    return f"{context}\n\n{prompt}" if isinstance(context, str) and context else prompt


def broken(path: Path, number: int, reason: str) -> BadPromptFile:
    """Return the error for a line."""
    return BadPromptFile(path=path, line=number, reason=f"line {number} {reason}")


def encode(tokenizer: Any, text: str, *, raw: bool = False) -> tuple[int, ...]:
    """Return a prompt's tokens, in the target's chat template unless ``raw`` or it has none. Raises BadRequest."""
    if tokenizer is None:
        raise BadRequest(field="prompt", reason="the target has no tokenizer, so it cannot read text")
    if not text.strip():
        raise BadRequest(field="prompt", reason="it is empty")
    if raw or not tokenizer.chat_template:
        return tuple(tokenizer.encode(text))
    try:
        framed = ChatTemplate(tokenizer).render(Chat([{"role": "user", "content": text}]))
    except BadRequest as error:
        reason = f"{error.facts['reason'].split(';')[0]}; give --raw to leave it out"
        raise BadRequest(field="prompt", reason=reason) from None
    return tuple(tokenizer.encode(framed, add_special_tokens=False))
