"""`python -m osd.bench NAME`: benches for those who work on osd itself. Users find theirs under `osd bench`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

import typer

from osd.bench.harness.watch import note
from storage.errors import OsdError

COMMANDS = {
    "acceptance": "osd.bench.acceptance:command",
    "cells": "osd.bench.cells.bench:command",
    "eagle": "osd.bench.eagle.bench:command",
    "encoder-decoder": "osd.bench.encoder_decoder:command",
    "harvest": "osd.bench.harvest:command",
    "replay": "osd.bench.replay:command",
    "router": "osd.bench.router.bench:command",
    "rounds": "osd.bench.rounds:command",
    "servers": "osd.bench.servers:command",
    "soak": "osd.bench.soak.bench:command",
    "stats": "osd.bench.stats.bench:command",
    "topk": "osd.bench.topk:command",
    "trigram": "osd.bench.trigram:command",
    "vllm": "osd.bench.vllm.bench:command",
}


def main(arguments: Sequence[str]) -> int:
    """Run the bench that the first argument names; return the exit status."""
    name, *options = arguments or ["--help"]
    if name not in COMMANDS:
        note(f"Usage: python -m osd.bench NAME [OPTIONS]; NAME is one of {', '.join(COMMANDS)}.")
        return 0 if name == "--help" else 2
    module, function = COMMANDS[name].split(":")
    app = typer.Typer(pretty_exceptions_enable=False, add_completion=False, rich_markup_mode="markdown")
    app.command(name)(getattr(import_module(module), function))
    try:
        app(options, prog_name=f"osd.bench {name}")
    except OsdError as error:
        note(f"osd: {error}")
        return error.exit_code
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else bool(end.code)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
