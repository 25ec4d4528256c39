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
PICTURES = (".png", ".svg", ".pdf")


@dataclass(frozen=True, slots=True)
class Format:
    """How a table shows values."""

    show: Callable[[Any], str] = str
    right: bool = False
    whole: bool = False
    """Whether they are never wrapped while another column can be."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: the row's key, the heading, and the values' format."""

    key: str
    heading: str
    format: Format = Format()


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
        if self.picture is not None and self.picture.suffix.lower() not in PICTURES:
            raise BadSetting(
                source="option", key="--picture", reason=f"{self.picture} must end in {', '.join(PICTURES)}"
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
        side: Literal["left", "right"] = "right" if column.format.right else "left"
        cut: Literal["ellipsis", "fold"] = "ellipsis" if column.format.right else "fold"  # no number is broken in two
        table.add_column(column.heading, justify=side, overflow=cut, no_wrap=column.format.whole)
    for row in rows:
        table.add_row(*(cell(row.get(column.key), column.format.show) for column in columns))
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


def seconds(value: float) -> str:
    """Format a length of time."""
    return f"{value:,.1f} s"


def size(value: float) -> str:
    """Format bytes in a suitable unit."""
    if value < 0:
        return f"−{size(-value)}"
    for unit in ("B", "KB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def state(value: Any) -> str:
    """Return an enum's value."""
    return str(value.value if isinstance(value, Enum) else value)


TEXT, NUMBER, TIME = Format(), Format(right=True), Format(when, whole=True)
COUNT, RATE = Format(count, right=True), Format(share, right=True)
FORMATS = {
    key: form
    for form, keys in {
        TIME: "added_at at created_at day expires_at hour minute newest oldest revoked_at started_at",
        COUNT: "accepted appeared_after count drafted emitted holdout positions prompts refused rejections requests "
        "requests_after requests_before set_aside tokens_per_s waiting wasted",
        RATE: "after alpha apart_error before discard_rate draft_acceptance_rate precision_after precision_before "
        "recall_after recall_before right share update_share verification_rate",
        NUMBER: "batch best rank requests_per_minute running token tokens_per_minute wanted",
        Format(signed, right=True): "apart difference high low precision_gain recall_gain",
        Format(size, right=True, whole=True): "bytes bytes_saved hidden_bytes",
        Format(seconds, right=True): "age decode_seconds net_gain_seconds pays_in_seconds seconds training_seconds "
        "without_seconds",
        Format(lambda place: str(place + 1), right=True): "position",
        Format(whole=True): "action controller draft engine id key measured name part route subject tenant true "
        "version who worker",
        Format(repr, whole=True): "drafted_text token_text wanted_text",
        Format(", ".join): "candidates names pins served_by",
        Format(" ".join): "scopes successors words",
        Format(lambda holds: "●" if holds else ""): "chosen holds",
        Format(state): "state",
    }.items()
    for key in keys.split()
}
"""How tables show what a key of a row names; anything else is text."""


def columns(own: Mapping[str, Format] | None = None, /, **headings: str) -> list[Column]:
    """Return a table's columns: key=heading. ``own``: formats of this table where they are not those of all."""
    formats = {**FORMATS, **(own or {})}
    return [Column(key, heading, formats.get(key, TEXT)) for key, heading in headings.items()]
