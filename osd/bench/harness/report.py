"""What a bench prints: tables for people, and on its last line JSON of one shape for programs.

{"bench": NAME, "settings": {…}, "figures": {…}, "files": {what: path}, "interrupted": false}
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from osd.bench.harness.watch import note
from storage.files.files import write_whole

WIDE = 240
DIGITS = 6
"""Decimals of numbers in the last line."""
INTERRUPTED = 130
"""Exit status of a command that Ctrl-C ended."""


@dataclass(frozen=True)
class BenchResult:
    """What a bench found."""

    bench: str
    settings: Mapping[str, Any]
    """What makes the figures what they are: models, prompts, sizes, threads."""
    figures: Mapping[str, Any]
    tables: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    """By title, rows for people; their keys are the headings."""
    files: Mapping[str, Path] = field(default_factory=dict)
    """What was left, by what it is."""
    interrupted: bool = False

    def line(self) -> dict[str, Any]:
        """Return the last line."""
        names = ("bench", "settings", "figures", "files", "interrupted")
        found: dict[str, Any] = plain({name: getattr(self, name) for name in names}, DIGITS)
        return found

    def show(self, *, as_json: bool = False) -> int:
        """Print tables (unless ``as_json``), files and the last line; return the command's exit status."""
        for title, rows in ({} if as_json else self.tables).items():
            print_rows(title, rows)
        for what, path in self.files.items():
            note(f"{what}: {path}")
        sys.stdout.write(json.dumps(self.line(), ensure_ascii=False, allow_nan=False) + "\n")
        sys.stdout.flush()
        return INTERRUPTED if self.interrupted else 0


def save_json(path: Path, value: Any) -> Path:
    """Write a value for programs and people, in a folder that is made where it lacks; return its path. Raises
    StoreWriteFailed."""
    text = json.dumps(plain(value, DIGITS), ensure_ascii=False, allow_nan=False, indent=1)
    write_whole(path, memoryview(text.encode() + b"\n"))
    return path


def print_rows(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows as a table on stdout; numbers stand on the right, with three or so significant digits."""
    if not rows:
        return
    table = Table(title=title, title_justify="left", header_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in dict.fromkeys(name for row in rows for name in row):
        numeric = any(isinstance(row.get(name), (int, float)) for row in rows)
        cut: Literal["ellipsis", "fold"] = "ellipsis" if numeric else "fold"  # a number is never broken in two
        table.add_column(escape(name), justify="right" if numeric else "left", overflow=cut)
    for row in rows:
        table.add_row(*(escape(shown(row.get(name))) for name in dict.fromkeys(n for each in rows for n in each)))
    (Console() if sys.stdout.isatty() else Console(width=WIDE)).print(table)


def shown(value: Any) -> str:
    """Return a value as a table shows it."""
    if value is None or value == "":
        return "–"
    if isinstance(value, float):
        digits = max(0, 2 - math.floor(math.log10(abs(value)))) if value and math.isfinite(value) else 0
        return f"{value:,.{min(digits, 4)}f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def plain(value: Any, digits: int | None = None) -> Any:
    """Return a value as JSON has it: enums by value, paths as text, null for what is not finite, decimals cut to
    ``digits`` where that is given."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner, digits) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner, digits) for inner in value]
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float):
        finite = value if math.isfinite(value) else None
        return finite if finite is None or digits is None else round(finite, digits)
    return str(value) if isinstance(value, Path) else value
