"""`osd stats rejections`: where and why drafted tokens are rejected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from osd.cli.context import surroundings
from osd.cli.options import JsonOption
from osd.cli.out import Column, Row, count, share
from osd.cli.stats_show import (
    CsvOption,
    PictureOption,
    RequestsOption,
    RouteOption,
    SinceOption,
    StatsDraftOption,
    TokenizerOption,
    TopOption,
    UntilOption,
    VersionOption,
    show,
)
from osd.cli.stats_text import token_text, tokenizer_file, with_text
from storage.errors import BadSetting

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COUNTED = (
    Column("rejections", "rejections", count, right=True),
    Column("share", "share", share, right=True),
    Column("alpha", "α there", share, right=True),
)
KEYS = {
    "position": (Column("position", "place", lambda value: str(value + 1), right=True),),
    "route": (Column("route", "route", whole=True),),
    "token": (
        Column("drafted", "drafted", right=True),
        Column("drafted_text", "text", repr, whole=True),
        Column("wanted", "wanted", right=True),
        Column("wanted_text", "text", repr, whole=True),
    ),
}
MARKS = {"position": "position", "route": "route", "token": "wanted"}
"""Kind of rejections -> the key that only its rows have."""


def rejections(
    ctx: typer.Context,
    by: Annotated[
        str | None, typer.Option(help="position, route or token; CSV and a picture need one.", metavar="KIND")
    ] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    route: RouteOption = None,
    draft: StatsDraftOption = None,
    version: VersionOption = None,
    top: TopOption = 15,
    requests: RequestsOption = 400,
    tokenizer: TokenizerOption = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
    picture: PictureOption = None,
) -> None:
    """Show where rejections concentrate, and what the target wanted instead.

    By place in the draft and by route from the counters; by token from the newest kept requests. α of a pair of tokens
    is how often the drafted one is accepted.

    Examples: `osd stats rejections --since 1d`, `osd stats rejections --by token --route sql --top 30 --csv`
    """
    from storage.insights.service import Answers
    from storage.outcomes.outcome_window import Window

    kinds = [by] if by else list(KEYS)
    if unknown := [kind for kind in kinds if kind not in KEYS]:
        raise BadSetting(source="option", key="--by", reason=f"{unknown[0]!r} is none of {', '.join(KEYS)}")
    if by is None and (as_csv or picture):
        raise BadSetting(source="option", key="--by", reason="CSV and a picture hold one of position, route, token")
    around = surroundings(ctx)
    with around.store() as store:
        found = Answers(store).rejections(Window(since, until, route, draft, version), top=top, requests=requests)
    text = token_text(tokenizer_file(tokenizer, around.settings.serve))
    every = with_text([row.as_dict() for row in found], text, ["drafted", "wanted"])
    parts = {kind: [row for row in every if MARKS[kind] in row] for kind in kinds}
    for kind, rows in {"all": every}.items() if as_json and by is None else parts.items():
        columns = [*KEYS.get(kind, ()), *COUNTED]
        show(
            rows, columns, as_json=as_json, as_csv=as_csv, picture=picture, draw=lambda: _draw(parts),
            empty=f"No rejections have been recorded by {kind}.", whole=parts if kind == "all" else None,
        )  # fmt: skip


def _draw(parts: dict[str, list[dict[str, object]]]) -> Figure:
    """Draw the one kind that was asked for."""
    from osd.cli.stats_picture import bars

    ((kind, rows),) = parts.items()
    shown: list[Row] = [row | {"label": _label(kind, row)} for row in rows]
    return bars(shown, ["label"], "share", "share of the rejections")


def _label(kind: str, row: dict[str, object]) -> str:
    if kind == "token":
        return " → ".join(repr(row[f"{key}_text"] or row[key]).replace("$", r"\$") for key in ("drafted", "wanted"))
    return f"place {int(str(row[kind])) + 1}" if kind == "position" else str(row[kind])
