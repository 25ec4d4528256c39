"""From texts to a corpus' tokens and back: files line by line, so that an interrupted build can go on; a tokenizer, of
many texts at once, on every core; and a corpus as the body of SGLang's ``POST /add_external_corpus``."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from tokenizers import Tokenizer

from osd.drafters.ngram import BadCorpus
from osd.drafters.ngram.corpus import TOKENIZER, Batch, Corpus
from osd.models.vocabulary import vocabulary_digest
from osd.prompts import UNREADABLE, open_bytes
from storage.files.files import TemporaryPath
from storage.store import Store

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
    except UNREADABLE as error:
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


FEW, SOME = 512, 256
"""Documents that are encoded at once; requests that are read at once."""
REPLAY = "replay"
"""The name of the replay store among a corpus' sources."""


class Encoder:
    """A tokenizer.json: texts to tokens and back."""

    def __init__(self, path: Path) -> None:
        self.path = path / TOKENIZER if path.is_dir() else path
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
        try:
            self._tokenizer = Tokenizer.from_file(str(self.path))
        except Exception as error:  # the library raises Exception itself
            said = str(error).strip().splitlines()[0]
            raise BadCorpus(path=path, reason=f"it is no tokenizer.json, nor a folder with one ({said}).") from None
        self.vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        self.digest = vocabulary_digest(self.vocabulary)

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Return the tokens of each text."""
        return [found.ids for found in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

    def decode(self, texts: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of each, special tokens left out."""
        return list(self._tokenizer.decode_batch([list(text) for text in texts], skip_special_tokens=True))

    def show(self, tokens: Sequence[int]) -> str:
        """Return a few tokens as people read them: quoted, so that spaces and line ends can be seen."""
        return repr(self._tokenizer.decode(list(tokens), skip_special_tokens=False))


def text_batches(encoder: Encoder, path: Path, fields: Sequence[str], skip: int) -> Iterator[Batch]:
    """Yield the documents of a file after its first ``skip`` lines. Raises BadCorpus."""
    found = documents(path, fields, skip)
    while few := list(islice(found, FEW)):
        texts = encoder.encode([document.text for document in few])
        yield texts, few[-1].after, sum(document.bytes for document in few)


def replay_batches(encoder: Encoder, store: Store, skip: int) -> Iterator[Batch]:
    """Yield the tokens of recorded requests, oldest first, after the first ``skip``; bytes are those of the tokens.

    Raises BadCorpus for tokens that the tokenizer does not have.
    """
    ids = store.samples.recent(limit=1 << 62, target=store.targets.newest())[::-1]
    size = max(encoder.vocabulary.values()) + 1
    for first in range(skip, len(ids), SOME):
        texts = [samples.tokens for samples in store.samples.read(ids[first : first + SOME])]
        if texts and (largest := max(int(text.max(initial=0)) for text in texts)) >= size:
            said = f"kept requests have token {largest}, the tokenizer knows {size}: it is not the one they came with."
            raise BadCorpus(path=encoder.path, reason=said)
        yield [text.tolist() for text in texts], min(first + SOME, len(ids)), sum(4 * len(text) for text in texts)


def export_sglang(corpus: Corpus, encoder: Encoder, destination: Path, corpus_id: str) -> int:
    """Write ``{"corpus_id", "documents"}``, whole or not at all; return the number of documents.

    Raises BadCorpus when the file exists, StoreWriteFailed.
    """
    destination = Path(destination).absolute()
    if destination.exists():
        raise BadCorpus(path=destination, reason="it exists; give the name of a new file.")
    count, found = 0, corpus.documents()
    with TemporaryPath(destination.parent, destination.name) as aside:
        aside.write(_bytes(f'{{"corpus_id": {json.dumps(corpus_id)}, "documents": ['))
        while few := list(islice(found, FEW)):
            texts = [text for text in encoder.decode([tokens.tolist() for tokens in few]) if text]
            between = ", " if count else ""
            aside.write(_bytes(between + ", ".join(json.dumps(text, ensure_ascii=False) for text in texts)))
            count += len(texts)
        aside.write(_bytes("]}\n"))
        aside.rename(destination)
    return count


def _bytes(text: str) -> memoryview:
    return memoryview(text.encode())
