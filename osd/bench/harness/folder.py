"""A run's folder: what it is to do, and, a line of JSON each, what of that is done, so that a run can go on where it
stopped."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from storage.errors import BadSetting
from storage.files.files import writing

PLAN = "plan.json"
Kept = TypeVar("Kept")
BROKEN = (ValueError, KeyError, TypeError, AttributeError)
"""What reading a line may raise where it is something else."""


class RunFolder(Generic[Kept]):
    """The plan, and what is finished."""

    def __init__(
        self, path: Path, facts: Mapping[str, Any], log: str, read: Callable[[str], Kept], write: Callable[[Kept], str]
    ) -> None:
        """Opens the folder, or makes it. ``facts``: the plan, as JSON keeps it; ``log``: the file's name, of lines that
        ``read`` and ``write`` tell. Raises BadSetting when it holds a run with another plan; StoreWriteFailed."""
        self.path = path
        self._log, self._read_line, self._write_line = path / log, read, write
        with writing(path):
            path.mkdir(parents=True, exist_ok=True)
            if (path / PLAN).exists():
                _compare(path / PLAN, facts)
            else:
                (path / PLAN).write_text(json.dumps(facts, indent=1), encoding="utf-8")
        self.finished = list(self._read())

    def add(self, kept: Kept) -> None:
        """Keep what was measured. Raises StoreWriteFailed."""
        with writing(self._log), self._log.open("a", encoding="utf-8") as log:
            log.write(self._write_line(kept) + "\n")
        self.finished.append(kept)

    def _read(self) -> Iterator[Kept]:
        if not self._log.exists():
            return
        text = self._log.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        if whole != text:  # a killed run's last line: cut it off, or the next would be written behind it
            self._log.write_text(whole, encoding="utf-8")
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                yield self._read_line(line)
            except BROKEN:
                reason = f"line {number} of {self._log} is not a measurement; remove that line, or give another folder"
                raise BadSetting(source="option", key="--out", reason=reason) from None


def _compare(path: Path, facts: Mapping[str, Any]) -> None:
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        names = [name for name, value in facts.items() if kept.get(name) != value]
        difference = f"{names[0]} is {kept.get(names[0])!r} there and {facts[names[0]]!r} now" if names else None
    except (ValueError, AttributeError):
        difference = f"{path.name} there cannot be read"
    if difference:
        ways = "the same options go on, another plan needs another folder"
        raise BadSetting(source="option", key="--out", reason=f"{path.parent} holds another run: {difference}; {ways}")
