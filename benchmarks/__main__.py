"""`python -m benchmarks NAME`: runs a bench in a checkout."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

import typer

from osd.bench.harness.watch import note
from storage.errors import OsdError

COMMANDS = {
    "acceptance": "benchmarks.acceptance:command",
    "cells": "benchmarks.cells.bench:command",
    "distil": "benchmarks.distil.command:distil",
    "drafts": "benchmarks.drafts_command:drafts",
    "eagle": "benchmarks.eagle.bench:command",
    "encoder-decoder": "benchmarks.encoder_decoder:command",
    "gamma": "benchmarks.gamma.command:gamma",
    "gpu": "benchmarks.gpu.command:gpu",
    "harvest": "benchmarks.harvest:command",
    "papers": "benchmarks.papers.command:papers",
    "rounds": "benchmarks.rounds:command",
    "router": "benchmarks.router.bench:command",
    "routes": "benchmarks.routes.command:routes",
    "servers": "benchmarks.servers:command",
    "soak": "benchmarks.soak.bench:command",
    "trees": "benchmarks.trees.command:trees",
    "vllm": "benchmarks.vllm.bench:command",
}


def main(arguments: Sequence[str]) -> int:
    """Run the bench that the first argument names; return the exit status."""
    name, *options = arguments or ["--help"]
    if name not in COMMANDS:
        note(f"Usage: python -m benchmarks NAME [OPTIONS]; NAME is one of {', '.join(COMMANDS)}.")
        return 0 if name == "--help" else 2
    module, function = COMMANDS[name].split(":")
    app = typer.Typer(pretty_exceptions_enable=False, add_completion=False, rich_markup_mode="markdown")
    app.command(name)(getattr(import_module(module), function))
    try:
        app(options, prog_name=f"benchmarks {name}")
    except OsdError as error:
        note(f"osd: {error}")
        return error.exit_code
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else bool(end.code)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
