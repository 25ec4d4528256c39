"""`osd metrics`: the store's numbers for Prometheus."""

from __future__ import annotations

import threading
from typing import Annotated

import typer

from osd.cli.context import surroundings
from osd.cli.out import note


def metrics(
    ctx: typer.Context,
    port: Annotated[int, typer.Option(help="0 takes a free one.", metavar="N", min=0, max=65535)] = 9464,
    host: Annotated[
        str, typer.Option(help="0.0.0.0 lets other machines in: there is no password.", metavar="ADDRESS")
    ] = "127.0.0.1",
    model_name: Annotated[str, typer.Option(help="The label of vLLM's metrics.", metavar="NAME")] = "osd",
    once: Annotated[bool, typer.Option("--once", help="Print the numbers and end, serving nothing.")] = False,
) -> None:
    """Serve the store's numbers at /metrics for Prometheus, until it is stopped.

    vLLM's four counters of speculative decoding under their own names, and osd_* beside them. Read only. One exporter a
    store is enough: it sums over all servers. Dashboard and alert rules: docs/watching.md.

    Example: `osd metrics --port 9464`
    """
    from osd.server.metrics.exposition import exporting, registry
    from osd.server.metrics.store import StoreCollector

    with surroundings(ctx).store() as store:
        collector = StoreCollector(store, model_name)
        if once:
            from prometheus_client import generate_latest

            typer.echo(generate_latest(registry([collector])).decode(), nl=False)
            return
        with exporting([collector], host, port) as listening:
            note(f"Serving http://{host}:{listening}/metrics. Ctrl-C stops it.")
            threading.Event().wait()
