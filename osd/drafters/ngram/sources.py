"""Sources of a corpus: texts out of files, line by line, so that an interrupted build can go on."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from osd.drafters.ngram.errors import BadCorpus
from osd.prompts import open_bytes

DOCUMENT = 4096
"""Characters from which on a plain text's document ends with its line."""
JSONL = (".jsonl", ".jsonl.gz")


@dataclass(frozen=True, slots=True)
class Document:
    """One text of a file."""

    text: str
    after: int
    """Number of lines of the file up to its end."""
    bytes: int
    """Bytes of its own lines."""


def documents(path: Path, fields: Sequence[str], skip: int = 0) -> Iterator[Document]:
    """Yield the documents of a file after its first ``skip`` lines: from JSON lines the fields named, joined by
    newlines; from other text stretches of whole lines. Raises BadCorpus."""
    number = 0
    try:
        with open_bytes(path) as lines:
            numbered = islice(enumerate(lines, start=1), skip, None)
            if path.name.endswith(JSONL):
                for number, line in numbered:
                    if line.strip():
                        yield Document(_fields_of(path, number, line, fields), number, len(line))
            else:
                yield from _stretches(path, numbered)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadCorpus(path=path, reason=f"it cannot be read after line {number} ({reason}).") from None


def _fields_of(path: Path, number: int, line: bytes, fields: Sequence[str]) -> str:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise BadCorpus(path=path, reason=f"line {number} is not JSON: {error}.") from None
    if not isinstance(record, dict):
        raise BadCorpus(path=path, reason=f"line {number} is not a JSON object.")
    for name in fields:
        if not isinstance(record.get(name), str):
            texts = ", ".join(sorted(key for key, value in record.items() if isinstance(value, str)))
            said = f"line {number} has no text in a field {name!r}; fields with text: {texts or 'none'}."
            raise BadCorpus(path=path, reason=f"{said} Choose with --field.")
    return "\n".join(record[name] for name in fields)


def _stretches(path: Path, lines: Iterator[tuple[int, bytes]]) -> Iterator[Document]:
    kept, size, number = [], 0, 0
    for number, line in lines:
        try:
            kept.append(line.decode())
        except UnicodeDecodeError as error:
            raise BadCorpus(path=path, reason=f"line {number} is not UTF-8 ({error.reason}).") from None
        size += len(line)
        if size >= DOCUMENT:
            yield Document("".join(kept), number, size)
            kept, size = [], 0
    if kept:
        yield Document("".join(kept), number, size)
