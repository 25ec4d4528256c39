"""`osd bench`: measurements on a pair and prompts of yours, or on those that ship with osd."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer

from osd.bench.harness.plan import command
from osd.bench.plans import DecodePlan, OnlinePlan, ServePlan
from osd.cli.context import surroundings

BENCHES: dict[str, tuple[type, str]] = {
    "decode": (DecodePlan, "osd.bench.decode"),
    "online": (OnlinePlan, "osd.bench.online"),
    "serve": (ServePlan, "osd.bench.serve.bench"),
}
"""Each one's plan, and the module of its bench, which loads torch and is imported when it runs."""

app = typer.Typer(no_args_is_help=True, help="Measure decoding, learning while serving, and a server under load.")


def _add(name: str, plan: type, module: str) -> None:
    def bench(*asked: Any) -> Any:
        return getattr(import_module(module), f"bench_{name}")(*asked)

    app.command(name)(command(plan, bench, lambda ctx: surroundings(ctx).settings))


for _name, (_plan, _module) in BENCHES.items():
    _add(_name, _plan, _module)
