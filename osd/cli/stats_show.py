"""Output of `osd stats`: a table, JSON, CSV, or a picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osd.cli.options import moment
from osd.cli.out import Column, Row, note, print_csv, print_json, print_table
from storage.errors import BadSetting

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SinceOption = Annotated[
    float | None,
    typer.Option("--since", parser=moment, metavar="WHEN", help="From then on: an age (15m, 2h, 7d) or a date."),
]
UntilOption = Annotated[
    float | None, typer.Option("--until", parser=moment, metavar="WHEN", help="Before then: an age or a date.")
]
RouteOption = Annotated[str | None, typer.Option("--route", help="This route only.", metavar="NAME")]
StatsDraftOption = Annotated[str | None, typer.Option("--draft", help="This draft only.", metavar="NAME")]
VersionOption = Annotated[str | None, typer.Option("--version", help="This draft version only.", metavar="ID")]
CsvOption = Annotated[bool, typer.Option("--csv", help="Print CSV instead of a table.")]
PictureOption = Annotated[
    Path | None,
    typer.Option("--picture", help="Draw it into this file too: .png, .svg or .pdf.", metavar="FILE"),
]
TopOption = Annotated[int, typer.Option("--top", help="Rows of tokens at most.", metavar="N", min=1)]
RequestsOption = Annotated[
    int, typer.Option("--requests", help="Newest kept requests that are read, on each side.", metavar="N", min=1)
]
TokenizerOption = Annotated[
    Path | None,
    typer.Option(
        "--tokenizer", help="Folder with tokenizer.json, to show tokens as text. Default: the target's.", metavar="DIR"
    ),
]

FORMATS = (".png", ".svg", ".pdf")


def show(
    rows: Sequence[Row],
    columns: Sequence[Column],
    *,
    as_json: bool,
    as_csv: bool,
    picture: Path | None = None,
    draw: Callable[[], Figure] | None = None,
    empty: str = "Nothing has been recorded that fits these options.",
    whole: Any = None,
) -> None:
    """Print the rows in the form asked for; JSON has ``whole`` instead, if given. Raises BadSetting."""
    if as_json and as_csv:
        raise BadSetting(source="option", key="--csv", reason="give either --json or --csv")
    if picture is not None and picture.suffix.lower() not in FORMATS:
        raise BadSetting(source="option", key="--picture", reason=f"{picture} must end in {', '.join(FORMATS)}")
    if as_json:
        print_json(rows if whole is None else whole)
    elif as_csv:
        print_csv(rows)
    else:
        print_table(rows, columns, empty=empty)
    if picture is not None and draw is not None:
        _save(rows, picture, draw)


def _save(rows: Sequence[Row], picture: Path, draw: Callable[[], Figure]) -> None:
    if not rows:
        note(f"There is nothing to draw; {picture} was not written.")
        return
    facts = {"Date": None} if picture.suffix.lower() == ".svg" else None
    try:
        draw().savefig(picture, dpi=150, metadata=facts)
    except OSError as error:
        raise BadSetting(
            source="option", key="--picture", reason=f"{picture} cannot be written ({error.strerror})"
        ) from error
    note(f"Drawn into {picture}.")
