"""`osd demo`: watch a draft learn."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from osd.bench.harness.report import INTERRUPTED
from osd.cli.context import surroundings
from osd.cli.options import JsonOption
from osd.cli.out import print_json
from osd.server.start import server_parts
from storage.errors import BadInput
from storage.settings import Settings


def demo(
    ctx: typer.Context,
    requests: Annotated[int, typer.Option(help="Prompts of each domain.", metavar="N", min=1)] = 250,
    domain: Annotated[
        list[str] | None,
        typer.Option(help="sql, arithmetic, python or finnish; may be given again. Default: all four.", metavar="NAME"),
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens of an answer at most.", metavar="N", min=1)] = 64,
    batch: Annotated[int, typer.Option(help="Requests decoded together.", metavar="N", min=1)] = 2,
    arrival: Annotated[
        str,
        typer.Option(
            help="free: as fast as it goes. paced: not far ahead of the trainer. lockstep: wait for each update.",
            metavar="free|paced|lockstep",
        ),
    ] = "paced",
    drafter: Annotated[
        Literal["blended", "causal"],
        typer.Option(help="blended: the draft and a table of n-grams, in one chain. causal: the draft alone."),
    ] = "blended",
    seed: Annotated[int, typer.Option(help="Which prompts are drawn.", metavar="N")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="New folder for report, picture and summary. Default: out/demo-…", metavar="DIR")
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the run's store there too: samples, versions, database.")
    ] = False,
    serve: Annotated[
        bool, typer.Option("--serve", help="Show the dashboard meanwhile; on a terminal it stays open until Ctrl-C.")
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(
            help="The dashboard's port; 0 takes a free one. Default: server.admin_port.", metavar="N", min=0, max=65535
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Watch a draft learn, with the small pair and the prompts that ship with osd.

    Requests of four domains stream through speculative decoding, one domain after another, while a worker process
    distils the draft from what it got wrong and new weights are taken in as they pass the gate. Nothing that you
    keep is read or written. Takes about three minutes on two cores; Ctrl-C ends it and reports what was done.

    Example: `osd demo --requests 100 --domain sql --domain finnish`
    """
    from osd.demo.prompts import DOMAINS
    from osd.demo.runner.run import last_line, run_demo

    settings, console = surroundings(ctx).settings, Console(stderr=as_json)
    if serve:
        server_parts()
    results = run_demo(
        settings, out=out or new_folder("demo"), console=console, requests=requests,
        domains=domain or tuple(DOMAINS), max_new_tokens=max_tokens, batch=batch, arrival=arrival, drafter=drafter,
        seed=seed, keep=keep, port=dashboard_port(settings, serve, port),
        stay=serve and console.is_terminal and not as_json,
    )  # fmt: skip
    if as_json:
        print_json(last_line(results))
    if results.facts["interrupted"]:
        raise typer.Exit(INTERRUPTED)


def dashboard_port(settings: Settings, serve: bool, port: int | None) -> int | None:
    """Return the dashboard's port; None where none is wanted. Raises BadInput for --port without --serve."""
    if port is not None and not serve:
        raise BadInput(reason="--port is the dashboard's: give --serve with it.")
    return None if not serve else settings.server.admin_port if port is None else port


def new_folder(name: str) -> Path:
    """Return the path ``out/<name>-<date>-<time>``."""
    return Path("out") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
