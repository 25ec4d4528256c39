"""Folders of labelled prompts, and the part of one that is kept for testing."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from osd.prompts import Prompt, broken, read_prompts
from storage.errors import BadBenchFile, BadPromptFile

Say = Callable[[str], None]
KEPT = 0.15
"""The part of a folder that is kept for testing when there is no other folder for it."""
SALT = "osd bench router|"
FIELDS = {
    "tatoeba": ("language", "response"),
    "xquad": ("language",),
    "clinc150": ("label", "topic"),
    "banking77": ("label",),
    "mbxp": ("response",),
}
"""The files that are read, as NAME.jsonl.gz or NAME.jsonl, and the text fields that each line must have."""


@dataclass(frozen=True, slots=True)
class LabelledPrompt:
    """A labelled prompt."""

    text: str
    facts: dict[str, str]
    """The fields that its file must have."""


Rows = list[LabelledPrompt]


class LabelledFolder:
    """The files of one folder, read when they are asked for."""

    def __init__(self, path: Path, say: Say) -> None:
        """Open the folder. Raises BadBenchFile when it is no folder, or holds none of the files."""
        self.path, self._say = path, say
        self._read: dict[str, Rows] = {}
        if not path.is_dir():
            raise BadBenchFile(path=path, reason="is no folder")
        if not any(self._file(name) for name in FIELDS):
            names = ", ".join(f"{name}.jsonl.gz" for name in FIELDS)
            raise BadBenchFile(path=path, reason=f"holds none of the files to measure with: {names}")

    def rows(self, name: str) -> Rows:
        """Return a file's rows; none, with a word to the person who waits, when it is not there. Broken lines are
        named.

        Raises BadPromptFile when it cannot be read, or has no good line.
        """
        if name not in self._read:
            self._read[name] = self._rows(name)
        return self._read[name]

    def _file(self, name: str) -> Path | None:
        return next((path for end in (".jsonl.gz", ".jsonl") if (path := self.path / f"{name}{end}").is_file()), None)

    def _rows(self, name: str) -> Rows:
        path = self._file(name)
        if path is None:
            self._say(f"{self.path} has no {name}.jsonl.gz; what it would show is left out")
            return []
        good = []
        for line in read_prompts(path):
            row = line if isinstance(line, BadPromptFile) else _row(path, line, FIELDS[name])
            if isinstance(row, LabelledPrompt):
                good.append(row)
            else:
                self._say(f"osd: {row}")
        if not good:
            raise BadPromptFile(path=path, reason="has no line that can be used")
        return good


def _row(path: Path, prompt: Prompt, fields: tuple[str, ...]) -> LabelledPrompt | BadPromptFile:
    for field in fields:
        if not isinstance(prompt.fields.get(field), str) or not prompt.fields[field].strip():
            return broken(path, prompt.line, f'has no "{field}" with text in it')
    return LabelledPrompt(prompt.text, {field: prompt.fields[field] for field in fields})


@dataclass(frozen=True, slots=True)
class BenchSides:
    """What is learned from, and what is measured on."""

    train: LabelledFolder
    test: LabelledFolder | None
    """None: rows of the training folder, by :func:`is_kept`."""

    def split(self, name: str, key: str | None = None) -> tuple[Rows, Rows]:
        """Return a file's rows to learn from and to measure on; those with an equal field ``key``, else prompt,
        together."""
        rows = self.train.rows(name)
        if self.test is not None:
            return rows, self.test.rows(name)
        kept = [is_kept(row.facts[key] if key else row.text) for row in rows]
        return [row for row, k in zip(rows, kept, strict=True) if not k], [
            row for row, k in zip(rows, kept, strict=True) if k
        ]

    def unlearned(self, name: str) -> Rows:
        """Return rows of a file that nothing is learned from, so that all of it can be measured on."""
        return (self.test or self.train).rows(name)


def fraction(key: str) -> float:
    """Return where a text falls in [0, 1): the first 16 digits of SHA-256 of ``osd bench router|`` and its words."""
    words = re.sub(r"\W+", " ", unicodedata.normalize("NFKC", key).lower()).strip()
    return int(hashlib.sha256((SALT + words).encode()).hexdigest()[:16], 16) / 16**16


def is_kept(key: str) -> bool:
    """Tell whether a text is kept for testing."""
    return fraction(key) < KEPT
