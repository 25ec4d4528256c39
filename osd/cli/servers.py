"""`osd servers`: the serving processes of a store. (`osd workers` is its name of the release before.)"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from osd.cli.context import surroundings
from osd.cli.options import JsonOption
from osd.cli.out import Column, note, print_rows, state, when

app = typer.Typer(no_args_is_help=True, help="List the serving processes of a store, and take one out of service.")
old = typer.Typer(no_args_is_help=True, help="Old name of `osd servers`.")

SHORT = 8
"""Digits of a digest that are shown."""


def seconds(value: float) -> str:
    """Format an age."""
    return f"{value:.0f} s"


def held(drafts: list[Mapping[str, Any]]) -> str:
    """Format what a worker drafts with, a line a draft: ✓ is the ledger's version, ≠ another, and canaries are
    marked."""
    marks = [" canary" if one["canary"] else "" if one["matches"] else " ≠" for one in drafts]
    return "\n".join(
        f"{one['version']} {one['digest'][:SHORT]}{mark or ' ✓'}" for one, mark in zip(drafts, marks, strict=True)
    )


COLUMNS = (
    Column("id", "server", whole=True),
    Column("state", "state", state),
    Column("url", "serves at"),
    Column("started_at", "since", when, whole=True),
    Column("age", "heartbeat", seconds, right=True),
    Column("running", "running", right=True),
    Column("waiting", "waiting", right=True),
    Column("rate", "requests/s", "{:.1f}".format, right=True),
    Column("drafts", "drafts with", held, whole=True),
    Column("trouble", "trouble"),
)


@old.command("list")
@app.command("list")
def list_servers(ctx: typer.Context, as_json: JsonOption = False) -> None:
    """List the serving processes, on whatever machine: which draft versions each has, and whether they are current.

    `✓` is the version that the ledger serves, `≠` another one, `canary` one that this process tries before the others
    take it. One that was not heard of for `fleet.gone_seconds` is gone; it is listed for another hour.
    """
    from storage.insights.roster import roster

    with surroundings(ctx).store() as store:
        rows = roster(store)
    print_rows(rows, COLUMNS, as_json=as_json, empty="No server runs on this store; `osd serve` starts one.")


@old.command()
@app.command()
def drain(
    ctx: typer.Context,
    server: Annotated[str, typer.Argument(help="Its name, as `osd servers list` shows it.", metavar="SERVER")],
    undo: Annotated[bool, typer.Option("--undo", help="Take requests again, if it has not stopped yet.")] = False,
) -> None:
    """Let one serving process finish what it has, and stop, on whatever machine it runs.

    It hears of it within `fleet.heartbeat_seconds`. Then `/ready` and new requests get 503; one of several processes
    behind a port leaves new connections to the others. What runs may finish within `server.drain_seconds`.
    """
    with surroundings(ctx).store() as store:
        store.workers.ask_drain(server, undo=undo)
    drains = "is to drain; `osd servers list` shows when it has stopped"
    note(f"{server} {'is to serve on' if undo else drains}.")


@old.callback()
def workers() -> None:
    """Old name of `osd servers`."""
    note("osd: `osd workers` is called `osd servers` now; the next release does not know the old name.")
