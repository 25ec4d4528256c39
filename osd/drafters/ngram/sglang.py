"""A corpus as the body of SGLang's ``POST /add_external_corpus``, whose n-gram draft reads it while it serves."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

from osd.drafters.ngram.corpus import Corpus
from osd.drafters.ngram.encoding import Encoder
from osd.drafters.ngram.errors import BadCorpus
from storage.files.files import TemporaryPath

FEW = 512


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
