"""Tokenizing for corpora: many texts at once, on every core, without special tokens."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from tokenizers import Tokenizer

from osd.drafters.ngram.corpus import TOKENIZER, Batch
from osd.drafters.ngram.errors import BadCorpus
from osd.drafters.ngram.files import vocabulary_digest
from osd.drafters.ngram.sources import documents
from storage.store import Store

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
