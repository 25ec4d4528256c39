"""Fill, ask, fill on: over SQLite, and over PostgreSQL where a database is named."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import text

from osd.bench.stats.questions import ask, questions
from osd.bench.stats.store import add_log, add_runs, add_samples, add_versions
from osd.bench.stats.year import StatsPlan, add_days, add_weeks, rows
from storage.errors import BadInput
from storage.settings import load_settings
from storage.sql.database import Database
from storage.store import Store, open_store

Report = Callable[[str], None]
STAGES = (1 / 12, 1 / 4, 1 / 2, 1.0)
"""Shares of the year after which the questions are asked."""


@dataclass(frozen=True, slots=True)
class Stage:
    """What the questions took when so much was there."""

    days: int
    rows: int
    ms: dict[str, float]
    cpu_ms: dict[str, float]
    """CPU time of this process: all of it for SQLite, for PostgreSQL what the server did not do."""


def measure(plan: StatsPlan, folder: Path, url: str | None, requests: int, repeats: int, report: Report) -> list[Stage]:
    """One database, filled in stages. Raises BadInput for one that is not empty, StoreError."""
    if url is not None:
        _make(url)
    with open_store(load_settings(storage={"directory": folder, "url": url, "holdout": 0.0})) as store:
        if rows(store.db) or store.versions.list():
            raise BadInput(reason=f"The database {store.db.url} is not empty; this bench fills one of its own.")
        _furnish(store, plan, folder, requests)
        stages, filled = [], 0
        for share in STAGES:
            until = round(plan.days * share)
            for first in range(filled, until, 10):
                add_days(store.db, plan, first, min(until, first + 10))
            filled = until
            stages.append(_stage(store, plan, filled, repeats))
            report(_told(store.db.dialect, stages[-1]))
        return stages


def _told(dialect: str, stage: Stage) -> str:
    slowest = max(stage.ms, key=lambda name: stage.ms[name])
    return f"{dialect}: {stage.days} days, {stage.rows:,} rows, slowest {slowest}: {stage.ms[slowest]:.0f} ms"


def _make(url: str) -> None:
    db = Database(url)
    try:
        db.upgrade()
    finally:
        db.close()


def _furnish(store: Store, plan: StatsPlan, folder: Path, requests: int) -> None:
    add_versions(store, plan, folder / "small-model")
    add_runs(store.db, plan)
    add_log(store.db, plan)
    add_samples(store, plan, requests)


def _stage(store: Store, plan: StatsPlan, days: int, repeats: int) -> Stage:
    add_weeks(store.db)
    if store.db.dialect == "postgresql":  # autovacuum would do it within a minute
        with store.db.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("VACUUM ANALYZE"))
    return Stage(days, rows(store.db), *ask(questions(store, plan, days), repeats))


def bench(
    plan: StatsPlan, folder: Path, postgres: str | None, *, requests: int, repeats: int, report: Report
) -> tuple[dict[str, Any], dict[str, list[Stage]]]:
    """What the last line says, and the stages of each database."""
    began = time.perf_counter()
    found = {"sqlite": measure(plan, folder / "sqlite", None, requests, repeats, report)}
    if postgres is not None:
        found["postgresql"] = measure(plan, folder / "postgresql", postgres, requests, repeats, report)
    ends = {name: stages[-1] for name, stages in found.items()}
    line: dict[str, Any] = {"sqlite": ends["sqlite"].ms, "postgresql": None}
    line |= {name: stage.ms for name, stage in ends.items()}
    line |= {f"{name}_cpu": stage.cpu_ms for name, stage in ends.items()}
    line["max_ms"] = max(max(stage.ms.values()) for stage in ends.values())
    line["rows"] = ends["sqlite"].rows
    line["growth"] = {name: [[s.days, s.rows, max(s.ms.values())] for s in stages] for name, stages in found.items()}
    return line | {"seconds": round(time.perf_counter() - began, 1)}, found
