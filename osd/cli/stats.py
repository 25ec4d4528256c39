"""`osd stats`: what came of drafting, from the counters that servers leave."""

from __future__ import annotations

from typing import Annotated

import typer

from osd.cli.context import surroundings
from osd.cli.options import JsonOption, MomentOption
from osd.cli.out import Column, count, print_csv, print_json, print_table, share, when

app = typer.Typer(no_args_is_help=True, help="Ask how well drafts guess.")

GROUPS = ("route", "version", "controller", "tenant", "worker", "minute", "hour", "day")
"""What storage.outcomes can tell apart, repeated here so that help needs no database library; a test compares."""
TIMES = ("minute", "hour", "day")
MEASURES = (
    Column("requests", "requests", count, right=True),
    Column("alpha", "α", share, right=True),
    Column("draft_acceptance_rate", "accepted /drafted", share, right=True),
    Column("mean_acceptance_length", "emitted /round", lambda value: f"{value:.2f}", right=True),
    Column("emitted", "tokens", count, right=True),
)
"""What a table shows; JSON and CSV have every measure and every sum."""


@app.command()
def acceptance(
    ctx: typer.Context,
    by: Annotated[
        str, typer.Option(help=f"Comma-separated: {', '.join(GROUPS)}; one time at most.", metavar="GROUPS")
    ] = "route,version",
    since: MomentOption = None,
    until: MomentOption = None,
    route: Annotated[str | None, typer.Option(help="This route only.", metavar="NAME")] = None,
    draft: Annotated[str | None, typer.Option(help="This draft only.", metavar="NAME")] = None,
    as_json: JsonOption = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV instead of a table.")] = False,
) -> None:
    """Show acceptance by route, draft version and time.

    α is the chance that a drafted token is accepted given that those before it were: accepted ÷ (accepted +
    rejections). Requests count where they finished, tokens and rounds under the version that drafted them.

    Examples: `osd stats acceptance --by version`,
    `osd stats acceptance --by route,hour --since 2d --csv`
    """
    names = [name.strip() for name in by.split(",") if name.strip()]
    with surroundings(ctx).store() as store:
        found = store.outcomes.acceptance(names, since=since, until=until, route=route, draft=draft)
    rows = [row.as_dict() for row in found]
    if as_json:
        print_json(rows)
    elif as_csv:
        print_csv(rows)
    else:
        keys = [Column(name, name, when if name in TIMES else str, whole=True) for name in names]
        narrowed = any(option is not None for option in (since, until, route, draft))
        which = "that fit these options" if narrowed else "yet"
        print_table(rows, [*keys, *MEASURES], empty=f"No requests have been recorded {which}.")
