"""`osd demo`: watch a draft learn."""

from __future__ import annotations

import typer
from rich.console import Console

from osd.cli.command import INTERRUPTED
from osd.cli.context import CommandContext
from osd.cli.out import Output, print_json
from osd.demo import DemoOptions
from osd.server.start import server_parts
from storage.errors import BadInput
from storage.settings import Settings


def demo(here: CommandContext, options: DemoOptions, output: Output) -> None:
    """Watch a draft learn, with the small pair and the prompts that ship with osd.

    Requests of four domains stream through speculative decoding, one domain after another, while a trainer
    distils the draft from what it got wrong and new weights are taken in as they pass the gate. Nothing that you
    keep is read or written. Takes about three minutes on two cores; Ctrl-C ends it and reports what was done.

    Example: `osd demo --requests 100 --domain sql --domain finnish`
    """
    from osd.bench.harness.plan import new_folder
    from osd.demo.runner.run import last_line, run_demo

    settings, console = here.settings, Console(stderr=output.as_json)
    if options.serve:
        server_parts()
    port = dashboard_port(settings, options)
    stay = options.serve and console.is_terminal and not output.as_json
    results = run_demo(settings, options, options.out or new_folder("demo"), console, port=port, stay=stay)
    if output.as_json:
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
