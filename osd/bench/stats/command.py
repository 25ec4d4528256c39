"""``python -m osd.bench stats``."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from osd.bench.harness.options import JsonOption
from osd.bench.harness.report import BenchResult
from osd.bench.harness.watch import note
from osd.bench.stats.bench import bench
from osd.bench.stats.year import StatsPlan
from storage.errors import BadSetting


def command(
    postgresql: Annotated[
        str | None,
        typer.Option(help="URL of an empty PostgreSQL database to measure too; it is left filled.", metavar="URL"),
    ] = None,
    small: Annotated[bool, typer.Option("--small", help="Twenty-four days of little traffic, to try it.")] = False,
    repeats: Annotated[
        int, typer.Option(help="Each question is asked so often; the least counts.", metavar="N", min=1)
    ] = 5,
    picture: Annotated[Path | None, typer.Option(help="Draw growth with size into this file.", metavar="FILE")] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where the store is made (3 GB). Default: a temporary folder.", metavar="DIR")
    ] = None,
    json: JsonOption = False,
) -> None:
    """How long every question of `osd stats` takes on a store with a year behind it.

    Synthetic minutes of 20 routes, 10 versions and 8 workers, at every span that is kept; 8,760 training runs; the
    newest 20,000 outcomes; 800 kept requests. Every hour and day has all routes and workers; of the minutes each of
    them has one in sixteen, because the whole would be 84 million rows and no question reads them all.

    Example: `python -m osd.bench stats --postgresql postgresql+psycopg://localhost/bench --picture growth.png --json`
    """
    plan = StatsPlan(days=24, routes=3, versions=3, workers=2) if small else StatsPlan()
    if folder is not None and folder.exists() and any(folder.iterdir()):
        raise BadSetting(source="option", key="--folder", reason=f"{folder} is not empty")
    where = folder or Path(tempfile.mkdtemp(prefix="osd-bench-stats-"))
    try:
        figures, found = bench(plan, where, postgresql, requests=40 if small else 400, repeats=repeats, report=note)
    finally:
        if folder is None:
            shutil.rmtree(where)
    if picture is not None:
        from osd.bench.stats.picture import draw, save

        save(draw(found), picture)
    rows = [{"question": name} | {f"{db}, ms": figures[db][name] for db in found} for name in figures["sqlite"]]
    facts = {"days": plan.days, "routes": plan.routes, "versions": plan.versions, "workers": plan.workers}
    files = {} if picture is None else {"growth": picture}
    raise typer.Exit(BenchResult("stats", facts, figures, {"Questions": rows}, files).show(as_json=json))
