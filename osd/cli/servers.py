"""`osd servers` and `osd metrics`: the serving processes of a store, and its numbers for Prometheus."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from osd.cli.command import CommandGroup
from osd.cli.context import CommandContext
from osd.cli.options import Name, Port
from osd.cli.out import NUMBER, Format, Output, columns, note

app = CommandGroup("List the serving processes of a store, and take one out of service.")

SHORT = 8
"""Digits of a digest that are shown."""


def seconds(value: float) -> str:
    """Format an age."""
    return f"{value:.0f} s"


def held(drafts: list[Mapping[str, Any]]) -> str:
    """Format what a server drafts with, a line a draft: ✓ is the ledger's version, ≠ another, and canaries are
    marked."""
    marks = [" canary" if one["canary"] else "" if one["matches"] else " ≠" for one in drafts]
    return "\n".join(
        f"{one['version']} {one['digest'][:SHORT]}{mark or ' ✓'}" for one, mark in zip(drafts, marks, strict=True)
    )


COLUMNS = columns(
    {"waiting": NUMBER, "rate": Format("{:.1f}".format, right=True), "drafts": Format(held, whole=True)},
    id="server", state="state", url="serves at", started_at="since", age="heartbeat", running="running",
    waiting="waiting", rate="requests/s", drafts="drafts with", trouble="trouble",
)  # fmt: skip


@app.command("list")
def list_servers(here: CommandContext, output: Output) -> None:
    """List the serving processes, on whatever machine: which draft versions each has, and whether they are current.

    `✓` is the version that the ledger serves, `≠` another one, `canary` one that this process tries before the others
    take it. One that was not heard of for `fleet.gone_seconds` is gone; it is listed for another hour.
    """
    from storage.insights.roster import roster

    with here.store() as store:
        rows = roster(store)
    output.rows(rows, COLUMNS, empty="No server runs on this store; `osd serve` starts one.")


@app.command()
def drain(
    here: CommandContext,
    server: Annotated[str, typer.Argument(help="Its name, as `osd servers list` shows it.", metavar="SERVER")],
    undo: Annotated[bool, "Take requests again, if it has not stopped yet."] = False,
) -> None:
    """Let one serving process finish what it has, and stop, on whatever machine it runs.

    It hears of it within `fleet.heartbeat_seconds`. Then `/ready` and new requests get 503; one of several processes
    behind a port leaves new connections to the others. What runs may finish within `server.drain_seconds`.
    """
    with here.store() as store:
        store.servers.ask_drain(server, undo=undo)
    drains = "is to drain; `osd servers list` shows when it has stopped"
    note(f"{server} {'is to serve on' if undo else drains}.")


@dataclass(frozen=True)
class ExporterOptions:
    """Where the numbers are served, and as whose."""

    port: Port = 9464
    """0 takes a free one."""
    host: Annotated[str, typer.Option(metavar="ADDRESS")] = "127.0.0.1"
    """0.0.0.0 lets other machines in: there is no password."""
    model_name: Name = "osd"
    """The label of vLLM's metrics."""
    once: bool = False
    """Print the numbers and end, serving nothing."""


def metrics(here: CommandContext, options: ExporterOptions) -> None:
    """Serve the store's numbers at /metrics for Prometheus, until it is stopped.

    vLLM's four counters of speculative decoding under their own names, and osd_* beside them. Read only. One exporter a
    store is enough: it sums over all servers. Dashboard and alert rules: docs/watching.md.

    Example: `osd metrics --port 9464`
    """
    from osd.server.metrics.exposition import exporting, registry
    from osd.server.metrics.store import StoreCollector

    with here.store() as store:
        collector = StoreCollector(store, options.model_name)
        if options.once:
            from prometheus_client import generate_latest

            typer.echo(generate_latest(registry([collector])).decode(), nl=False)
            return
        with exporting([collector], options.host, options.port) as listening:
            note(f"Serving http://{options.host}:{listening}/metrics. Ctrl-C stops it.")
            threading.Event().wait()
