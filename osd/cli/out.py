"""Printing: results go to stdout as a table, JSON or CSV; everything else goes to stderr."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from osd.bench.harness.report import plain
from osd.bench.harness.watch import note as note
from storage.errors import BadSetting

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = Mapping[str, Any]
NOTHING = "–"
WIDE = 240
FORMATS = (".png", ".svg", ".pdf")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: the row's key, the heading, and the value's format."""

    key: str
    heading: str
    show: Callable[[Any], str] = str
    right: bool = False
    whole: bool = False
    """Whether it is never wrapped while another column can be."""


@dataclass(frozen=True)
class Output:
    """The form in which a command prints its result."""

    as_json: Annotated[bool, typer.Option("--json")] = False
    """Print JSON on one line instead of a table."""

    def rows(self, rows: Sequence[Row], columns: Sequence[Column], *, empty: str = "") -> None:
        """Print rows as JSON or as a table."""
        if self.as_json:
            print_json(rows)
        else:
            print_table(rows, columns, empty=empty)

    def facts(self, facts: Row, shown: Row | None = None) -> None:
        """Print one thing's facts as JSON, or as two columns, name and value; ``shown`` instead for people."""
        if self.as_json:
            print_json(facts)
        else:
            print_facts(facts if shown is None else shown)

    def words(self, facts: Any, words: str) -> None:
        """Print what was done as JSON, or say it on stderr."""
        if self.as_json:
            print_json(facts)
        else:
            note(words)


@dataclass(frozen=True)
class TableOutput(Output):
    """The form in which `osd stats` prints its rows: a table, JSON or CSV, and a picture beside it."""

    as_csv: Annotated[bool, typer.Option("--csv")] = False
    """Print CSV instead of a table."""
    picture: Annotated[Path, typer.Option(metavar="FILE")] | None = None
    """Draw it into this file too: .png, .svg or .pdf."""

    @property
    def is_table(self) -> bool:
        """Whether people read it."""
        return not (self.as_json or self.as_csv)

    def show(
        self, rows: Sequence[Row], columns: Sequence[Column], draw: Callable[[], Figure], *, whole: Any = None,
        empty: str = "Nothing has been recorded that fits these options.",
    ) -> None:  # fmt: skip
        """Print the rows in the form asked for; JSON has ``whole`` instead, if given. Raises BadSetting."""
        if self.as_json and self.as_csv:
            raise BadSetting(source="option", key="--csv", reason="give either --json or --csv")
        if self.picture is not None and self.picture.suffix.lower() not in FORMATS:
            raise BadSetting(
                source="option", key="--picture", reason=f"{self.picture} must end in {', '.join(FORMATS)}"
            )
        if self.as_json:
            print_json(rows if whole is None else whole)
        elif self.as_csv:
            print_csv(rows)
        else:
            print_table(rows, columns, empty=empty)
        if self.picture is not None:
            save_picture(self.picture, draw if rows else None)


def save_picture(picture: Path, draw: Callable[[], Figure] | None) -> None:
    """Draw into a file, where there is anything to draw. Raises BadSetting where it cannot be written."""
    if draw is None:
        note(f"There is nothing to draw; {picture} was not written.")
        return
    facts = {"Date": None} if picture.suffix.lower() == ".svg" else None
    try:
        draw().savefig(picture, dpi=150, metadata=facts)
    except OSError as error:
        reason = f"{picture} cannot be written ({error.strerror})"
        raise BadSetting(source="option", key="--picture", reason=reason) from error
    note(f"Drawn into {picture}.")


def say(text: str) -> None:
    """Print a plain line of the result."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def print_json(value: Any) -> None:
    """Print one line of JSON."""
    say(json.dumps(plain(value), ensure_ascii=False, allow_nan=False))


def print_csv(rows: Sequence[Row]) -> None:
    """Print rows as CSV with a heading; nothing when there are none."""
    if rows:
        writer = csv.DictWriter(sys.stdout, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(plain(row) for row in rows)


def print_table(rows: Iterable[Row], columns: Sequence[Column], *, title: str | None = None, empty: str = "") -> None:
    """Print rows as a table; ``empty`` goes to stderr when there are none."""
    rows = list(rows)
    if not rows:
        note(empty)
        return
    table = Table(title=title, title_justify="left", header_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in columns:
        side: Literal["left", "right"] = "right" if column.right else "left"
        cut: Literal["ellipsis", "fold"] = "ellipsis" if column.right else "fold"  # a number is never broken in two
        table.add_column(column.heading, justify=side, overflow=cut, no_wrap=column.whole)
    for row in rows:
        table.add_row(*(cell(row.get(column.key), column.show) for column in columns))
    console().print(table)


def print_facts(facts: Row) -> None:
    """Print one thing's facts as two columns, name and value."""
    table = Table(show_header=False, box=None, pad_edge=False)
    for key, value in facts.items():
        table.add_row(f"[bold]{escape(key)}[/bold]", cell(value))
    console().print(table)


def console() -> Console:
    """Return stdout's console: as wide as the terminal, and unlimited when it goes to a file or a pipe."""
    return Console() if sys.stdout.isatty() else Console(width=WIDE)


def cell(value: Any, show: Callable[[Any], str] = str) -> str:
    """Format a value for a table cell."""
    if value is None or value == "":
        return NOTHING
    return escape(show(value))


def when(seconds: float) -> str:
    """Format Unix seconds as local date and time."""
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")


def share(value: float) -> str:
    """Format a rate with three decimals."""
    return f"{value:.3f}"


def signed(value: float) -> str:
    """Format a difference of rates."""
    return f"{value:+.3f}"


def count(value: float) -> str:
    """Format a whole number with separators."""
    return f"{value:,.0f}"


def counted(number: int, thing: str) -> str:
    """Format a number with its noun: ``1 round``, ``2 rounds``."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def size(value: float) -> str:
    """Format bytes in a suitable unit."""
    for unit in ("B", "KB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def state(value: Any) -> str:
    """Return an enum's value."""
    return str(value.value if isinstance(value, Enum) else value)
