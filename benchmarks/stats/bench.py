"""``python -m benchmarks stats``: how long every question takes on a store that served for a year.

Fill, ask, fill on: over SQLite, and over PostgreSQL where a database is named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from sqlalchemy import text

from benchmarks.stats.questions import ask, questions
from benchmarks.stats.year import StatsPlan, add_days, add_log, add_runs, add_samples, add_versions, add_weeks, rows
from osd.bench.harness.options import JsonOption
from osd.bench.harness.report import BenchResult
from osd.bench.harness.turns import measure_all
from osd.bench.harness.watch import Watch, watching
from storage.errors import BadInput, BadSetting
from storage.settings import load_settings
from storage.sql.database import Database
from storage.store import Store, open_store

STAGES = (1 / 12, 1 / 4, 1 / 2, 1.0)
"""Shares of the year after which the questions are asked."""
BAR = 100
"""Milliseconds that no question should take."""
NAMED = 5
"""The slowest questions, which the picture names."""


@dataclass(frozen=True, slots=True)
class Stage:
    """What the questions took when so much was there."""

    days: int
    rows: int
    ms: dict[str, float]
    cpu_ms: dict[str, float]
    """CPU time of this process: all of it for SQLite, for PostgreSQL what the server did not do."""


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

    Example: `python -m benchmarks stats --postgresql postgresql+psycopg://localhost/bench --picture growth.png --json`
    """
    plan = StatsPlan(days=24, routes=3, versions=3, workers=2, requests=40) if small else StatsPlan()
    if folder is not None and folder.exists() and any(folder.iterdir()):
        raise BadSetting(source="option", key="--folder", reason=f"{folder} is not empty")
    found: dict[str, list[Stage]] = {}
    with TemporaryDirectory(prefix="osd-bench-stats-") as aside, watching() as watch:
        for name, url in {"sqlite": None, "postgresql": postgresql}.items():
            if not watch.stopped and (url or name == "sqlite"):
                found[name] = measure(plan, (folder or Path(aside)) / name, url, repeats, watch)
    figures = {} if watch.stopped else figures_of(found)
    asked = [
        {"question": name} | {f"{db}, ms": figures[db][name] for db in found} for name in figures.get("sqlite", {})
    ]
    facts = {"days": plan.days, "routes": plan.routes, "versions": plan.versions, "workers": plan.workers}
    files = {"growth": draw(found, picture)} if picture and figures else {}
    result = BenchResult("stats", facts, figures, {"Questions": asked}, files, watch.stopped)
    raise typer.Exit(result.show(as_json=json))


def measure(plan: StatsPlan, folder: Path, url: str | None, repeats: int, watch: Watch) -> list[Stage]:
    """Fill one database in stages, and ask after each. Raises BadInput for one that is not empty, StoreError."""
    if url is not None:
        with closing(Database(url)) as db:
            db.upgrade()
    with open_store(load_settings(storage={"directory": folder, "url": url, "holdout": 0.0})) as store:
        if rows(store.db) or store.versions.list():
            raise BadInput(reason=f"The database {store.db.url} is not empty; this bench fills one of its own.")
        add_versions(store, plan, folder / "small-model")
        add_runs(store.db, plan)
        add_log(store.db, plan)
        add_samples(store, plan)
        ends = [round(plan.days * share) for share in STAGES]
        begins = dict(zip(ends, [0, *ends], strict=False))
        return measure_all(ends, lambda end: _stage(store, plan, begins[end], end, repeats), watch, work=float)


def _stage(store: Store, plan: StatsPlan, begin: int, end: int, repeats: int) -> Stage:
    for first in range(begin, end, 10):
        add_days(store.db, plan, first, min(end, first + 10))
    add_weeks(store.db)
    if store.db.dialect == "postgresql":  # autovacuum would do it within a minute
        with store.db.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("VACUUM ANALYZE"))
    return Stage(end, rows(store.db), *ask(questions(store, plan, end), repeats))


def figures_of(found: Mapping[str, Sequence[Stage]]) -> dict[str, Any]:
    """Return what the last line says."""
    ends = {name: stages[-1] for name, stages in found.items()}
    return {
        "postgresql": None, **{name: stage.ms for name, stage in ends.items()},
        **{f"{name}_cpu": stage.cpu_ms for name, stage in ends.items()},
        "max_ms": max(max(stage.ms.values()) for stage in ends.values()), "rows": ends["sqlite"].rows,
        "growth": {name: [[s.days, s.rows, max(s.ms.values())] for s in stages] for name, stages in found.items()},
    }  # fmt: skip


def draw(found: Mapping[str, Sequence[Stage]], file: Path) -> Path:
    """Draw how questions slow down with the rows, a panel a database: the slowest by name, the others in grey."""
    from osd.bench.harness.picture import COLOURS, FAINT, GREY, dress, make_panels

    figure, panels = make_panels(len(found), 5.4, 3.6, sharey=True)
    for axes, (name, stages) in zip(panels, found.items(), strict=True):
        millions = [stage.rows / 1e6 for stage in stages]
        ranked = sorted(stages[-1].ms, key=lambda question: -stages[-1].ms[question])
        for question in ranked[NAMED:]:
            axes.plot(millions, [stage.ms[question] for stage in stages], marker=".", color=FAINT, lw=0.8)
        for colour, question in zip(COLOURS, ranked[:NAMED], strict=False):
            axes.plot(millions, [stage.ms[question] for stage in stages], marker=".", color=colour, label=question)
        axes.axhline(BAR, color=GREY, lw=0.8, ls="--")
        axes.set_title(name, loc="left", fontsize=11)
        axes.set(yscale="log", xlabel="rows of counters, millions")
        axes.legend(frameon=False, fontsize=8)
        dress(axes)
    panels[0].set_ylabel("milliseconds")
    figure.savefig(file, dpi=150)
    return file
