"""``osd bench replay``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from osd.cli.context import surroundings
from osd.cli.options import DraftOption, JsonOption, TargetOption
from osd.cli.out import print_facts, print_json
from osd.server.start import choose_pair

SMALL = 20_000
"""Positions of ``--small``."""


def replay(
    ctx: typer.Context,
    target: TargetOption = None,
    draft: DraftOption = None,
    positions: Annotated[int, typer.Option(help="Positions to keep.", min=1_000)] = 10_000_000,
    small: Annotated[bool, typer.Option("--small", help=f"Only {SMALL:,} positions: does it work at all?")] = False,
    directory: Annotated[
        Path | None,
        typer.Option(
            help="Where the store is made; removed afterwards. 10 million positions need 3 GB.",
            exists=True,
            file_okay=False,
            metavar="FOLDER",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """What keeping costs: writing, reading, claiming and forgetting samples, and recording's share of decoding.

    Rates are by CPU seconds of one core, milliseconds by the clock. The pair only decodes for the recorder's share.

    Example: `osd bench replay --target ./target --draft ./draft --json`
    """  # fmt: skip
    from osd.bench.replay import bench_replay, recorder_share

    settings = surroundings(ctx).settings
    pair = choose_pair(settings.serve, target, draft)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,}"), TimeRemainingColumn())
    with Progress(*columns, transient=True, console=Console(stderr=True)) as bar:
        task = bar.add_task("positions kept", total=None)
        result: dict[str, Any] = bench_replay(
            settings, SMALL if small else positions, directory,
            lambda done, total: bar.update(task, completed=done, total=total),
        )  # fmt: skip
        bar.update(task, description="decoding", total=None)
        result |= recorder_share(settings, pair.target, pair.draft, 4 if small else 300)
    if not json:
        print_facts(result)
    print_json(result)
