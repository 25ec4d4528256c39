"""`python -m benchmarks NAME`: runs a bench in a checkout."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

import typer

from osd.bench.harness.plan import command
from osd.bench.harness.report import INTERRUPTED
from osd.bench.harness.watch import note
from storage.errors import OsdError
from storage.settings import load_settings

BENCHES = {
    "acceptance": "acceptance", "attached": "vllm.attached", "cells": "cells", "curve": "curve",
    "distil": "distil.bench", "drafting": "drafting", "eagle": "eagle.bench", "encoder-decoder": "encoder_decoder",
    "gamma": "gamma.bench", "gpu": "gpu.bench", "harvest": "harvest", "monitoring": "monitoring", "nightly": "nightly",
    "papers": "papers.bench", "regions": "regions", "rl": "rl", "rounds": "gamma.record", "router": "router.bench",
    "routes": "routes.bench", "servers": "servers", "soak": "soak", "trees": "trees.bench", "vllm": "vllm.bench",
    "walk": "walk",
}  # fmt: skip
"""The modules of ``bench_NAME``; the class of its plan stands in its signature."""


def main(arguments: Sequence[str]) -> int:
    """Run the bench that the first argument names; return the exit status."""
    name, *options = arguments or ["--help"]
    if name not in BENCHES:
        note(f"Usage: python -m benchmarks NAME [OPTIONS]; NAME is one of {', '.join(BENCHES)}.")
        return 0 if name == "--help" else 2
    app = typer.Typer(pretty_exceptions_enable=False, add_completion=False, rich_markup_mode="markdown")
    module = import_module(f"benchmarks.{BENCHES[name]}")
    bench = getattr(module, f"bench_{name.replace('-', '_')}")
    app.command(name)(command(getattr(module, bench.__annotations__["plan"]), bench, lambda _: load_settings()))
    try:
        app(options, prog_name=f"benchmarks {name}")
    except OsdError as error:
        note(f"osd: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        note("Stopped.")
        return INTERRUPTED
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else bool(end.code)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
