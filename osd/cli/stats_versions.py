"""`osd stats change` and `osd stats tokens`: what a version changed, and which tokens it learned."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osd.cli.context import surroundings
from osd.cli.options import JsonOption, moment, span
from osd.cli.out import Column, count, share, when
from osd.cli.stats_show import CsvOption, PictureOption, RequestsOption, TokenizerOption, TopOption, show
from osd.cli.stats_text import token_text, tokenizer_file, with_text
from storage.errors import BadSetting
from storage.records import DEFAULT_DRAFT

if TYPE_CHECKING:
    from storage.outcomes.outcome_window import Window
    from storage.store import Store


def _signed(value: float) -> str:
    return f"{value:+.3f}"


CHANGE = (
    Column("route", "route", lambda name: "all routes" if name == "*" else name, whole=True),
    Column("began", "began", when, whole=True),
    Column("before", "α before", share, right=True),
    Column("after", "α after", share, right=True),
    Column("difference", "difference", _signed, right=True),
    Column("low", "from", _signed, right=True),
    Column("high", "to", _signed, right=True),
    Column("requests_before", "requests before", count, right=True),
    Column("requests_after", "after", count, right=True),
    Column("verdict", "verdict"),
)
TOKENS = (
    Column("rank", "rank", right=True),
    Column("token", "token", right=True),
    Column("token_text", "text", repr, whole=True),
    Column("precision_before", "precision before", share, right=True),
    Column("precision_after", "after", share, right=True),
    Column("precision_gain", "gain", _signed, right=True),
    Column("recall_before", "recall before", share, right=True),
    Column("recall_after", "after", share, right=True),
    Column("recall_gain", "gain", _signed, right=True),
    Column("appeared_after", "times after", count, right=True),
)
DraftNameOption = Annotated[str, typer.Option("--draft", help="The draft whose versions are meant.", metavar="NAME")]


def change(
    ctx: typer.Context,
    version: Annotated[str | None, typer.Argument(help="Default: the draft's current version.", metavar="[ID]")] = None,
    draft: DraftNameOption = DEFAULT_DRAFT,
    window: Annotated[
        float, typer.Option(parser=span, help="Time on either side: 6h, 2d.", metavar="TIME", show_default="1d")
    ] = "1d",  # type: ignore[assignment]
    confidence: Annotated[float, typer.Option(help="Of the intervals, between 0 and 1.", metavar="P")] = 0.95,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
    picture: PictureOption = None,
) -> None:
    """Show acceptance before and after a version began to serve, with an interval, by route.

    Before are the draft's other versions, after is this one. Interval of a difference of ratios, from minutes (window
    up to 6 h), hours (up to 4 d) or days, which it takes as independent: a change of traffic at the same moment shows
    in it too.

    Example: `osd stats change default-000007-1f2e3d4c --window 2d`
    """
    from osd.cli.stats_picture import changes
    from storage.insights.service import Answers

    with surroundings(ctx).store() as store:
        name = (store.versions.get(version) if version else store.versions.current(draft)).id
        found = Answers(store).change(name, window=window, confidence=confidence)
    rows = [asdict(row) for row in found]
    show(
        rows, CHANGE, as_json=as_json, as_csv=as_csv, picture=picture, draw=lambda: changes(rows),
        empty=f"{name} has not served yet.",
    )  # fmt: skip


def tokens(
    ctx: typer.Context,
    before: Annotated[str | None, typer.Option(help="A version. Default: the parent of --after.", metavar="ID")] = None,
    after: Annotated[str | None, typer.Option(help="A version. Default: the current one.", metavar="ID")] = None,
    split: Annotated[
        float | None,
        typer.Option(parser=moment, help="Compare before and after a moment instead of two versions.", metavar="WHEN"),
    ] = None,
    draft: DraftNameOption = DEFAULT_DRAFT,
    route: Annotated[str | None, typer.Option(help="This route only.", metavar="NAME")] = None,
    sort: Annotated[
        str, typer.Option(help="precision, recall: greatest gain first; rank: most frequent first.", metavar="NAME")
    ] = "precision",
    top: TopOption = 15,
    frequent: Annotated[int, typer.Option(help="Most frequent tokens that are looked at.", metavar="N", min=1)] = 100,
    requests: RequestsOption = 400,
    tokenizer: TokenizerOption = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
    picture: PictureOption = None,
) -> None:
    """Show which tokens gained most precision and recall between two versions, or two stretches of time.

    Precision: how often a token was accepted by how often it was proposed. Recall: by how often it is in the answers.
    From the samples that are kept (serve.record = verified), so it goes as far back as they do.

    Examples: `osd stats tokens --sort recall`,
    `osd stats tokens --split 2d --route sql --picture tokens.png`
    """
    from osd.cli.stats_picture import learned
    from storage.insights.service import Answers

    if sort not in ("precision", "recall", "rank"):
        raise BadSetting(source="option", key="--sort", reason=f"{sort!r} is none of precision, recall, rank")
    around = surroundings(ctx)
    with around.store() as store:
        sides = _sides(store, draft, route, before, after, split)
        found = [row.as_dict() for row in Answers(store).tokens(*sides, requests=requests, top=frequent)]
    text = token_text(tokenizer_file(tokenizer, around.settings.serve))
    rows = with_text(_sorted(found, sort)[:top], text, ["token"])
    show(rows, TOKENS, as_json=as_json, as_csv=as_csv, picture=picture, draw=lambda: learned(found))


def _sides(
    store: Store, draft: str, route: str | None, before: str | None, after: str | None, split: float | None
) -> tuple[Window, Window]:
    from storage.outcomes.outcome_window import Window

    if split is not None:
        if before or after:
            raise BadSetting(source="option", key="--split", reason="give either a moment or versions")
        return Window(until=split, route=route, draft=draft), Window(since=split, route=route, draft=draft)
    later = store.versions.get(after) if after else store.versions.current(draft)
    earlier = store.versions.get(before).id if before else later.parent
    if earlier is None:
        raise BadSetting(source="option", key="--before", reason=f"{later.id} has no parent; name a version")
    return Window(route=route, version=earlier), Window(route=route, version=later.id)


def _sorted(rows: list[dict[str, Any]], sort: str) -> list[dict[str, Any]]:
    """Sort by greatest gain first; rows without one are left out."""
    if sort == "rank":
        return rows
    known = [row for row in rows if row[f"{sort}_gain"] is not None]
    return sorted(known, key=lambda row: -float(row[f"{sort}_gain"]))
