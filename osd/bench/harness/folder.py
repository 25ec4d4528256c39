"""A run's folder: what it is to do, and, a line of JSON each, what of that is done, so that a run can go on where it
stopped."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter

from osd.bench.harness.report import plain
from storage.errors import BadSetting
from storage.files.files import writing

PLAN = "plan.json"
Kept = TypeVar("Kept")


class RunFolder(Generic[Kept]):
    """The plan, and what is finished."""

    def __init__(self, path: Path, facts: Mapping[str, Any], log: str, kind: type[Kept]) -> None:
        """Open the folder, or make it. ``facts``: the plan; ``log``: the name of the file of what is done; ``kind``: a
        dataclass, or another type that pydantic reads, whose values its lines are. Raises BadSetting when it holds a
        run with another plan; StoreWriteFailed."""
        facts = plain(facts)
        self._log, self._lines = path / log, TypeAdapter(kind)
        with writing(path):
            path.mkdir(parents=True, exist_ok=True)
            if (path / PLAN).exists():
                _compare(path / PLAN, facts)
            else:
                (path / PLAN).write_text(json.dumps(facts, indent=1), encoding="utf-8")
        self.finished = list(self._read())

    def add(self, kept: Kept) -> None:
        """Keep what was measured. Raises StoreWriteFailed."""
        with writing(self._log), self._log.open("ab") as log:
            log.write(self._lines.dump_json(kept) + b"\n")
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
                yield self._lines.validate_json(line)
            except ValueError:
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
