"""A corpus: texts as tokens on the disk, and the table of their n-grams.

    tokens.bin          uint32, one document after another
    documents.bin       uint64, where each document ends in tokens.bin
    corpus.json         what it was made of: sources, fields, tokenizer, counts
    tokenizer.json      a copy of the tokenizer
    model.safetensors   the table, with ngram.json beside it: a folder that a draft can be made of

A build writes into ``.NAME.building`` and renames it when it is whole. ``progress.json`` in there says how far the
token files are good; what a killed build wrote beyond that is cut off, and the build goes on from there.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from osd.drafters.ngram import BadCorpus
from osd.drafters.ngram.files import require_tokenizer, write_table
from osd.drafters.ngram.table import Table, TableSettings, first_room
from storage.files.files import make_folder, remove, rename, writing
from storage.versions.weights import sync_tree

TOKENS, ENDS, FACTS, PROGRESS = "tokens.bin", "documents.bin", "corpus.json", "progress.json"
TOKENIZER = "tokenizer.json"
STRETCH = 1 << 18
"""Tokens that are counted at once."""

Told = Callable[["BuildProgress"], None]


@dataclass(frozen=True, slots=True)
class BuildProgress:
    """How far a build has come."""

    sources: tuple[str, ...]
    fields: tuple[str, ...]
    tokenizer: str
    source: int = 0
    """Number of sources that are done."""
    line: int = 0
    """Number of lines (of the replay store: requests) of the next source that are done."""
    documents: int = 0
    tokens: int = 0
    bytes: int = 0
    """Bytes of text read."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """A finished corpus."""

    folder: Path
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def tokens(self) -> npt.NDArray[np.uint32]:
        """(T,) all tokens, mapped from the disk."""
        found: npt.NDArray[np.uint32] = _mapped(self.folder / TOKENS, np.uint32, self.facts["tokens"])
        return found

    @property
    def ends(self) -> npt.NDArray[np.uint64]:
        """(D,) where each document ends."""
        found: npt.NDArray[np.uint64] = _mapped(self.folder / ENDS, np.uint64, self.facts["documents"])
        return found

    def documents(self) -> Iterator[npt.NDArray[np.uint32]]:
        """Yield each document's tokens."""
        tokens, begin = self.tokens, 0
        for end in self.ends.tolist():
            yield tokens[begin:end]
            begin = end


def _mapped(path: Path, kind: type[Any], length: int) -> Any:
    try:
        array = np.memmap(path, kind, mode="r") if length else np.zeros(0, kind)
    except (OSError, ValueError) as error:
        raise BadCorpus(path=path, reason=f"it cannot be read ({error}); build the corpus anew.") from None
    if len(array) != length:
        raise BadCorpus(path=path, reason=f"it has {len(array)} numbers, corpus.json says {length}; build it anew.")
    return array


def open_corpus(folder: Path) -> Corpus:
    """Open a finished corpus. Raises BadCorpus."""
    path = Path(folder) / FACTS
    try:
        facts = json.loads(path.read_text("utf-8"))
        return Corpus(Path(folder), {**facts, "tokens": int(facts["tokens"]), "documents": int(facts["documents"])})
    except OSError:
        raise BadCorpus(path=folder, reason="there is no corpus; `osd corpus build` makes one.") from None
    except (ValueError, KeyError, TypeError) as error:
        raise BadCorpus(path=path, reason=f"it is damaged ({error}); build the corpus anew.") from None


class Builder:
    """Appends documents to a corpus that is being built, and finishes it."""

    def __init__(self, folder: Path, wanted: BuildProgress) -> None:
        self.folder = Path(folder).absolute()
        if self.folder.exists():
            raise BadCorpus(path=folder, reason="it exists; give the name of a new folder.")
        self.aside = self.folder.parent / f".{self.folder.name}.building"
        with writing(self.aside):
            make_folder(self.aside, 0o700)  # it holds private texts
        self.progress = self._resumed(wanted)
        self._cut()

    def _resumed(self, wanted: BuildProgress) -> BuildProgress:
        path = self.aside / PROGRESS
        try:
            kept = json.loads(path.read_text("utf-8"))
            found = BuildProgress(**{**kept, "sources": tuple(kept["sources"]), "fields": tuple(kept["fields"])})
        except FileNotFoundError:
            return wanted
        except (ValueError, TypeError, KeyError):
            raise BadCorpus(path=path, reason="it is damaged; delete its folder and build again.") from None
        require_tokenizer(f"The unfinished corpus {self.aside}", found.tokenizer, wanted.tokenizer)
        if (found.sources, found.fields) != (wanted.sources, wanted.fields):
            said = "an unfinished build there has other sources or fields; go on with those, or delete"
            raise BadCorpus(path=self.folder, reason=f"{said} {self.aside}.")
        return found

    def _cut(self) -> None:
        """Cut the token files to the length that the progress states."""
        with writing(self.aside):
            for name, size in ((TOKENS, 4 * self.progress.tokens), (ENDS, 8 * self.progress.documents)):
                with (self.aside / name).open("ab") as file:
                    if file.tell() < size:
                        raise BadCorpus(path=self.aside / name, reason="it is cut off; delete its folder, build again.")
                    file.truncate(size)

    def add(self, texts: Sequence[Sequence[int]], *, line: int, size: int) -> None:
        """Append documents, then record that they are there."""
        texts = [text for text in texts if len(text)]
        lengths = np.array([len(text) for text in texts], np.uint64)
        ends = np.cumsum(lengths) + np.uint64(self.progress.tokens)
        flat = np.concatenate([np.asarray(text, np.uint32) for text in texts]) if texts else np.zeros(0, np.uint32)
        with writing(self.aside):
            for name, array in ((TOKENS, flat), (ENDS, ends.astype(np.uint64))):
                with (self.aside / name).open("ab") as file:
                    array.tofile(file)
        done = self.progress
        self._note(
            replace(
                done, line=line, documents=done.documents + len(texts), tokens=done.tokens + len(flat),
                bytes=done.bytes + size,
            )
        )  # fmt: skip

    def next_source(self) -> None:
        """Record that a source is done."""
        self._note(replace(self.progress, source=self.progress.source + 1, line=0))

    def _note(self, progress: BuildProgress) -> None:
        with writing(self.aside / PROGRESS):
            beside = self.aside / f"{PROGRESS}.new"
            beside.write_text(json.dumps(asdict(progress)), encoding="utf-8")
            os.replace(beside, self.aside / PROGRESS)
        self.progress = progress

    def finish(
        self, settings: TableSettings, tokenizer: Path, told: Callable[[int], None] = lambda _: None
    ) -> tuple[Corpus, Table]:
        """Count the n-grams, write the table with a copy of the tokenizer.json, and give the folder its name.

        ``told`` is called with the number of tokens counted. Raises BadCorpus when there are none.
        """
        if not self.progress.tokens:
            remove(self.aside)
            raise BadCorpus(path=self.folder, reason="the sources hold no text, so there is nothing to count.")
        facts = asdict(self.progress)
        table = count(Corpus(self.aside, facts), settings, told)
        write_table(self.aside, table, self.progress.tokenizer)
        with writing(self.aside):
            (self.aside / FACTS).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
            shutil.copyfile(tokenizer, self.aside / TOKENIZER)
            (self.aside / PROGRESS).unlink()
            sync_tree(self.aside)
            rename(self.aside, self.folder)
        return Corpus(self.folder, facts), table


def count(corpus: Corpus, settings: TableSettings, told: Callable[[int], None] = lambda _: None) -> Table:
    """Count a corpus' n-grams in a new table."""
    table = Table(settings, first_room(settings))
    tokens, ends, begin, at = corpus.tokens, corpus.ends.astype(np.int64), 0, 0
    while at < len(ends):
        last = max(at + 1, int(np.searchsorted(ends, begin + STRETCH)))
        starts = np.concatenate([[begin], ends[at:last]])
        table.learn_documents(tokens[begin : starts[-1]].astype(np.int64), starts - begin)
        begin, at = int(starts[-1]), last
        told(begin)
    return table


Batch = tuple[Sequence[Sequence[int]], int, int]
"""Documents' tokens, lines of the source up to their end, bytes of those lines."""


def build(builder: Builder, batches_of: Callable[[str, int], Iterable[Batch]], told: Told) -> None:
    """Append what is left of every source. ``batches_of`` yields a source's documents after that many lines."""
    while builder.progress.source < len(builder.progress.sources):
        source = builder.progress.sources[builder.progress.source]
        for texts, line, size in batches_of(source, builder.progress.line):
            builder.add(texts, line=line, size=size)
            told(builder.progress)
        builder.next_source()
