"""`osd demo`: watch a draft learn."""

from __future__ import annotations

import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from osd.cli.command import INTERRUPTED
from osd.cli.context import CommandContext
from osd.cli.out import Output, print_json
from osd.demo import DemoOptions
from osd.server.start import server_parts
from storage.errors import BadInput, ModelNotLoaded
from storage.settings import Settings

SMALL_ONLY = ("requests", "domain", "batch", "arrival", "drafter")


def demo(here: CommandContext, options: DemoOptions, output: Output) -> None:
    """Watch heads of random weights learn from a real model's answers, and what they gain.

    SmolLM2-135M-Instruct answers word problems. A trainer beside it distils Medusa heads (or EAGLE) from the
    answers, and new weights are taken in as they pass the gate. At one row the same engine is measured with drafts
    and without, in turns. The model comes from the Hub, its cache, or a package by pip; where there is none the pair
    that ships with osd serves, as with --small. Nothing that you keep is read or written. Ctrl-C ends it and
    reports what was done.

    Example: `osd demo --minutes 30`
    """
    from osd.bench.harness.plan import new_folder

    begun, console = time.perf_counter(), Console(stderr=output.as_json)
    if options.serve:
        server_parts()
    port = dashboard_port(here.settings, options)
    require_small(options)
    out = options.out or new_folder("demo")
    facts = None if options.small else real(here.settings, options, out, console, begun, port)
    if facts is None:
        from osd.demo.runner.run import last_line, run_demo

        console.print("Loading the small pair; this takes three minutes and more. Ctrl-C ends it at any time.")
        stay = options.serve and console.is_terminal and not output.as_json
        results = run_demo(here.settings, options, out, console, port=port, stay=stay)
        facts = last_line(results) | {"interrupted": results.facts["interrupted"]}
    if output.as_json:
        print_json(facts)
    if facts["interrupted"]:
        raise typer.Exit(INTERRUPTED)


def real(
    settings: Settings, options: DemoOptions, out: Path, console: Console, begun: float, port: int | None
) -> dict[str, Any] | None:
    """Run the demo on a real model; None where there is none, having said why. Raises OsdError."""
    from osd.demo.real.model import find_model

    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True)

    say(f"This takes {options.minutes} minutes (--minutes N; --small for a toy in three). Ctrl-C ends it at any time.")
    try:
        model = find_model(settings.storage.cache_directory(), say)
    except ModelNotLoaded as error:
        say(f"No real model, so the small pair serves: {error}")
        return None
    say(f"The model is from {model[1]}.")
    from osd.demo.real.run import run_real

    return run_real(settings, options, model, out, console, begun=begun, port=port)


def require_small(options: DemoOptions) -> None:
    """Check that what --small alone reads is given with it. Raises BadInput."""
    if options.small:
        return
    for field in fields(options):
        if field.name in SMALL_ONLY and getattr(options, field.name) != field.default:
            raise BadInput(reason=f"--{field.name} is for the small pair: give --small with it.")


def dashboard_port(settings: Settings, options: DemoOptions) -> int | None:
    """Return the dashboard's port; None where none is wanted. Raises BadInput for --port without --serve."""
    if not options.serve:
        if options.port is not None:
            raise BadInput(reason="--port is the dashboard's: give --serve with it.")
        return None
    return settings.server.admin_port if options.port is None else options.port
