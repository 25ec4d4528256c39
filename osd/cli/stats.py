"""`osd stats`: statistics of drafting and training. It formats the answers of storage.insights."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from osd.cli.context import surroundings
from osd.cli.holds import holds_of, tell_holds
from osd.cli.options import JsonOption
from osd.cli.out import Column, Row, count, note, share, when
from osd.cli.stats_cost import cost, runs
from osd.cli.stats_rejections import rejections
from osd.cli.stats_show import (
    CsvOption,
    PictureOption,
    RouteOption,
    SinceOption,
    StatsDraftOption,
    UntilOption,
    VersionOption,
    show,
)
from osd.cli.stats_versions import change, tokens
from storage.lossy import lossy_mode

if TYPE_CHECKING:
    from matplotlib.figure import Figure

app = typer.Typer(no_args_is_help=True, help="Ask how well drafts guess, why, and what it brings.")

GROUPS = ("route", "version", "controller", "tenant", "worker", "engine", "minute", "hour", "day")
"""Groups of storage.outcomes.outcomes, repeated here so that help needs no database library; a test compares them."""
PLACE_GROUPS = ("route", "version", "minute", "hour", "day")
TIMES = ("minute", "hour", "day")
ALPHA = Column("alpha", "α", share, right=True)
OF_DRAFTED = Column("draft_acceptance_rate", "accepted /drafted", share, right=True)
MEASURES = (
    Column("requests", "requests", count, right=True),
    ALPHA,
    OF_DRAFTED,
    Column("mean_acceptance_length", "emitted /round", lambda value: f"{value:.2f}", right=True),
    Column("discard_rate", "discarded /emitted", share, right=True),
    Column("verification_rate", "rounds /emitted", share, right=True),
    Column("emitted", "tokens", count, right=True),
)
"""Measures shown in a table; JSON and CSV have every measure and every sum."""
PLACES = (
    Column("position", "place", lambda value: str(value + 1), right=True),
    ALPHA,
    OF_DRAFTED,
    Column("drafted", "drafted", count, right=True),
    Column("accepted", "accepted", count, right=True),
    Column("refused", "refused", count, right=True),
    Column("wasted", "not judged", count, right=True),
)


@app.command()
def acceptance(
    ctx: typer.Context,
    by: Annotated[
        str, typer.Option(help=f"Comma-separated: {', '.join(GROUPS)}; one time at most.", metavar="GROUPS")
    ] = "route,version",
    since: SinceOption = None,
    until: UntilOption = None,
    route: RouteOption = None,
    draft: StatsDraftOption = None,
    version: VersionOption = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
    picture: PictureOption = None,
) -> None:
    """Show acceptance by route, draft version, gamma controller, tenant, server and time.

    α is the chance that a drafted token is accepted given that those before it were: accepted ÷ (accepted +
    rejections). Requests count where they finished, tokens and rounds under the version that drafted them. A worker is
    one serving process; an engine is an attached one by its name, and `osd` for all of our own.

    Examples: `osd stats acceptance --by version`, `osd stats acceptance --by engine,version`,
    `osd stats acceptance --by route,hour --since 2d --csv`,
    `osd stats acceptance --by route,day --picture alpha.png`
    """
    from storage.insights.service import Answers
    from storage.outcomes.outcome_window import Window

    names = _names(by)
    with surroundings(ctx).store() as store:
        window = Window(since, until, route, draft, version)
        found = Answers(store).acceptance(window, names)
        modes = {lossy_mode(str(row.by["controller"])) for row in Answers(store).acceptance(window, ["controller"])}
        holds = holds_of(store, draft)
    _tell_lossy(modes - {""})
    rows = [row.as_dict() for row in found]
    narrowed = any(option is not None for option in (since, until, route, draft, version))
    which = "that fit these options" if narrowed else "yet"
    show(
        rows, [*_keys(names), *MEASURES], as_json=as_json, as_csv=as_csv, picture=picture,
        draw=lambda: _draw(rows, names), empty=f"No requests have been recorded {which}.",
    )  # fmt: skip
    tell_holds({} if as_json or as_csv else holds)


def _tell_lossy(modes: Collection[str]) -> None:
    if modes:
        note(
            f"Some of it was accepted lossily (serve.lossy = {', '.join(sorted(modes))}): more than the target's "
            "distribution allows. `--by controller` tells it apart."
        )


@app.command()
def positions(
    ctx: typer.Context,
    by: Annotated[
        str, typer.Option(help=f"Comma-separated: {', '.join(PLACE_GROUPS)}; one time at most.", metavar="GROUPS")
    ] = "",
    since: SinceOption = None,
    until: UntilOption = None,
    route: RouteOption = None,
    draft: StatsDraftOption = None,
    version: VersionOption = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
    picture: PictureOption = None,
) -> None:
    """Show acceptance by place in the draft.

    A table counts places from 1; JSON and CSV from 0, as vLLM's metric does. What was drafted behind a refused token is
    not judged.

    Example: `osd stats positions --by version --since 7d --picture places.png`
    """
    from osd.cli.stats_picture import places
    from storage.insights.service import Answers
    from storage.outcomes.outcome_window import Window

    names = _names(by)
    with surroundings(ctx).store() as store:
        found = Answers(store).positions(Window(since, until, route, draft, version), names)
    rows = [row.as_dict() for row in found]
    show(
        rows, [*_keys(names), *PLACES], as_json=as_json, as_csv=as_csv, picture=picture,
        draw=lambda: places(rows, names), empty="No places in drafts have been counted that fit these options.",
    )  # fmt: skip


def _names(by: str) -> list[str]:
    return [name.strip() for name in by.split(",") if name.strip()]


def _keys(names: list[str]) -> list[Column]:
    return [Column(name, name, when if name in TIMES else str, whole=True) for name in names]


def _draw(rows: Sequence[Row], names: list[str]) -> Figure:
    from osd.cli.stats_picture import bars, over_time

    time = next((name for name in names if name in TIMES), None)
    if time is None:
        return bars(rows, names, "alpha", "acceptance rate α")
    return over_time(rows, time, [name for name in names if name != time])


app.command()(change)
app.command()(tokens)
app.command()(rejections)
app.command()(cost)
app.command()(runs)
