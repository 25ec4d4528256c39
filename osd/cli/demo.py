"""`osd demo`: watch a draft learn."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from osd.cli.command import INTERRUPTED
from osd.cli.context import CommandContext
from osd.cli.options import Count, Port
from osd.cli.out import print_json
from osd.server.start import server_parts
from storage.errors import BadInput
from storage.settings import Settings


@dataclass(frozen=True)
class DemoOptions:
    """What is served, how, and what is left of it."""

    requests: Count = 250
    """Prompts of each domain."""
    domain: Annotated[list[str], typer.Option(metavar="NAME")] | None = None
    """sql, arithmetic, python or finnish; may be given again. Default: all four."""
    max_tokens: Count = 64
    """Tokens of an answer at most."""
    batch: Count = 2
    """Requests decoded together."""
    arrival: Annotated[str, typer.Option(metavar="free|paced|lockstep")] = "paced"
    """free: as fast as it goes. paced: not far ahead of the trainer. lockstep: wait for each update."""
    drafter: Literal["blended", "causal"] = "blended"
    """blended: the draft and a table of n-grams, in one chain. causal: the draft alone."""
    seed: Annotated[int, typer.Option(metavar="N")] = 0
    """Which prompts are drawn."""
    out: Annotated[Path, typer.Option(metavar="DIR")] | None = None
    """New folder for report, picture and summary. Default: out/demo-…"""
    keep: bool = False
    """Keep the run's store there too: samples, versions, database."""
    serve: bool = False
    """Show the dashboard meanwhile; on a terminal it stays open until Ctrl-C."""
    port: Port | None = None
    """The dashboard's port; 0 takes a free one. Default: server.admin_port."""
    as_json: Annotated[bool, typer.Option("--json")] = False
    """Print JSON on one line instead of a table."""


def demo(here: CommandContext, options: DemoOptions) -> None:
    """Watch a draft learn, with the small pair and the prompts that ship with osd.

    Requests of four domains stream through speculative decoding, one domain after another, while a worker process
    distils the draft from what it got wrong and new weights are taken in as they pass the gate. Nothing that you
    keep is read or written. Takes about three minutes on two cores; Ctrl-C ends it and reports what was done.

    Example: `osd demo --requests 100 --domain sql --domain finnish`
    """
    from osd.demo.prompts import DOMAINS
    from osd.demo.runner.run import last_line, run_demo

    settings, console = here.settings, Console(stderr=options.as_json)
    if options.serve:
        server_parts()
    results = run_demo(
        settings, out=options.out or new_folder("demo"), console=console, requests=options.requests,
        domains=options.domain or tuple(DOMAINS), max_new_tokens=options.max_tokens, batch=options.batch,
        arrival=options.arrival, drafter=options.drafter, seed=options.seed, keep=options.keep,
        port=dashboard_port(settings, options), stay=options.serve and console.is_terminal and not options.as_json,
    )  # fmt: skip
    if options.as_json:
        print_json(last_line(results))
    if results.facts["interrupted"]:
        raise typer.Exit(INTERRUPTED)


def dashboard_port(settings: Settings, options: DemoOptions) -> int | None:
    """Return the dashboard's port; None where none is wanted. Raises BadInput for --port without --serve."""
    if not options.serve:
        if options.port is not None:
            raise BadInput(reason="--port is the dashboard's: give --serve with it.")
        return None
    return settings.server.admin_port if options.port is None else options.port


def new_folder(name: str) -> Path:
    """Return the path ``out/<name>-<date>-<time>``."""
    return Path("out") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
