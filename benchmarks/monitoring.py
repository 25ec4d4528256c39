"""``python -m benchmarks monitoring``: how long the ten questions of docs/monitoring-sql.md take over a year of
minutes, on SQLite, and on PostgreSQL where a database is named.

The database makes the rows itself: millions would take Python an hour. What stands in them follows from minute, route
and server by arithmetic, so both databases hold the same.
"""

from __future__ import annotations

import re
import statistics
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from annotated_types import Ge
from sqlalchemy import text, update

from osd.bench.harness.plan import Count, facts_of
from osd.bench.harness.report import BenchResult
from osd.bench.harness.watch import Watch, note
from storage.errors import BadInput
from storage.records import RunState, VersionState
from storage.settings import Settings, load_settings
from storage.sql.database import Database
from storage.sql.outcome_tables import COUNTS
from storage.sql.spans import DAY, HOUR, KEPT, MINUTE
from storage.sql.tables import DraftRow, RunRow, VersionRow
from storage.store import open_store

END = 1_795_996_800
"""Where the year ends: 2026-11-30, a whole day in Unix seconds."""
PAGE = Path(__file__).parents[1] / "docs" / "monitoring-sql.md"
PLACES, TENANTS, CHUNK = 4, 5, 10
"""Places of a draft that are counted; tenants; days that are made at once."""
BAR = 100
"""Milliseconds that no question should take."""
KEYS = {
    "outcome_counters": (("route", "draft_version", "controller", "tenant", "worker"), COUNTS),
    "position_counters": (("route", "draft_version", "position"), ("drafted", "accepted", "refused")),
}
"""Table -> what is summed by, what is summed."""
TRAFFIC = """
WITH RECURSIVE minutes(start) AS (
  SELECT CAST(:since AS BIGINT) UNION ALL SELECT start + 60 FROM minutes WHERE start + 60 < :until
),
routes(r) AS (SELECT 0 UNION ALL SELECT r + 1 FROM routes WHERE r + 1 < :routes),
servers(w) AS (SELECT 0 UNION ALL SELECT w + 1 FROM servers WHERE w + 1 < :servers),
traffic AS (
  SELECT start, r, w, start / 60 + r * 31 + w * 101 AS n, (start - :begin) * :versions / (:days * 86400) AS v
  FROM minutes CROSS JOIN routes CROSS JOIN servers WHERE (start / 60 * 7919 + r * 104729 + w * 1299709) % :stride = 0
),
named AS (
  SELECT *, 'route-' || CAST(r AS TEXT) AS route, 'default-' || CAST(v AS TEXT) AS version, 20 + n % 17 AS rounds,
    40 + (3 * v + r + n) % 37 AS accepted
  FROM traffic
)"""
SUMS = """
INSERT INTO outcome_counters SELECT 60, start, route, version, CASE WHEN w % 2 = 0 THEN 'goodput' ELSE 'vllm' END,
  'tenant-' || CAST((r + w) % :tenants AS TEXT), 'server-' || CAST(w AS TEXT), 1 + n % 3, rounds, rounds * 4,
  rounds * 4 * accepted / 100, rounds * 6 / 10, rounds * 4 * accepted / 100 + rounds, 50 + n % 90,
  rounds * 6.0, rounds * 22.0
FROM named WHERE true"""
POSITIONS = """
, places(p) AS (SELECT 0 UNION ALL SELECT p + 1 FROM places WHERE p + 1 < :places)
INSERT INTO position_counters
SELECT 60, start, route, version, p, rounds, rounds * accepted / (100 + 20 * p), rounds * (p + 4) / 60
FROM named CROSS JOIN places WHERE w = 0"""


@dataclass(frozen=True, kw_only=True)
class MonitoringPlan:
    """Ask the ten questions of docs/monitoring-sql.md of a store with a year of minutes.

    Example: `python -m benchmarks monitoring --postgresql postgresql+psycopg://localhost/bench --json`
    """

    days: Count = 365
    """Days of traffic."""
    routes: Count = 4
    """Routes."""
    servers: Count = 2
    """Servers; every second one is a vLLM."""
    versions: Count = 10
    """Versions of the draft; they serve one after another, equally long."""
    stride: Count = 1
    """A server has traffic on a route in one minute of so many."""
    repeats: Annotated[int, Ge(1)] = 9
    """Each question is asked so often, after once to warm up."""
    postgresql: str | None = None
    """URL of an empty PostgreSQL database to measure too; it is left filled."""


def bench_monitoring(plan: MonitoringPlan, settings: Settings, watch: Watch) -> BenchResult:
    """Fill and ask. Raises BadInput for a database that is not empty."""
    found: dict[str, dict[str, list[float]]] = {}
    rows = 0
    with TemporaryDirectory(prefix="osd-bench-monitoring-") as folder:
        for name, url in {"sqlite": f"sqlite:///{folder}/osd.db", "postgresql": plan.postgresql}.items():
            if url and not watch.stopped:
                with closing(Database(url)) as db:
                    db.upgrade()
                began = time.perf_counter()
                with open_store(load_settings(storage={"directory": Path(folder) / name, "url": url})) as store:
                    rows = fill(store.db, plan)
                    note(f"{name}: {rows:,} rows in {time.perf_counter() - began:.0f} s")
                    found[name] = ask(store.db, plan)
    figures = {
        name: {question: [round(min(ms), 1), round(statistics.median(ms), 1)] for question, ms in asked.items()}
        for name, asked in found.items()
    }
    table = [
        {"question": question} | {f"{name}, ms (least, median)": figures[name][question] for name in figures}
        for question in figures["sqlite"]
    ]
    slowest = max(median for asked in figures.values() for _, median in asked.values())
    told = {**figures, "rows": rows, "slowest_ms": slowest, "within_bar": slowest < BAR}
    return BenchResult("monitoring", facts_of(plan, postgresql=bool(plan.postgresql)), told, {"Questions": table})


def fill(db: Database, plan: MonitoringPlan) -> int:
    """Make the year at every span that is kept, versions and runs; return how many rows of counters there are. Raises
    BadInput."""
    if count(db):
        raise BadInput(reason=f"The database {db.url} is not empty; this bench fills one of its own.")
    begin = END - plan.days * DAY
    facts = {"begin": begin, "tenants": TENANTS, "places": PLACES}
    facts |= {name: getattr(plan, name) for name in ("days", "routes", "servers", "versions", "stride")}
    for since in range(begin, END, CHUNK * DAY):
        chunk = {"since": since, "until": min(END, since + CHUNK * DAY)}
        with db.session() as session:
            for made in (SUMS, POSITIONS):
                query = TRAFFIC + made
                used = {key: value for key, value in (facts | chunk).items() if re.search(rf":{key}\b", query)}
                session.execute(text(query), used)
            for table in KEYS:
                for finer, span in ((MINUTE, HOUR), (HOUR, DAY)):
                    session.execute(text(rolled(table, finer, span)), chunk)
    with db.session() as session:
        for table in KEYS:
            session.execute(text(rolled(table, DAY, KEPT[-1])), {"since": begin, "until": END})
    add_ledger(db, plan, begin)
    with db.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE" if db.dialect == "postgresql" else "ANALYZE"))
    return count(db)


def rolled(table: str, finer: int, span: int) -> str:
    """Return the query that sums up the rows of a span into those of a coarser one."""
    keys, counts = KEYS[table]
    names, start = ", ".join(keys), f"start - start % {span}"
    sums = ", ".join(f"sum({each})" for each in counts)
    return (
        f"INSERT INTO {table} (span, start, {names}, {', '.join(counts)}) SELECT {span}, {start}, {names}, {sums} "
        f"FROM {table} WHERE span = {finer} AND start >= :since AND start < :until GROUP BY {start}, {names}"
    )


def count(db: Database) -> int:
    """Return how many rows of counters there are."""
    with db.session(read_only=True) as session:
        return sum(int(session.scalar(text(f"SELECT count(*) FROM {table}")) or 0) for table in KEYS)


def add_ledger(db: Database, plan: MonitoringPlan, begin: int) -> None:
    """Enter the draft's versions, and a training run of 64 requests an hour."""
    ids = [f"{number:032x}" for number in range(64)]
    facts = {"positions": 9000, "steps": 70, "seconds": 41.5, "evidence": {"before": 0.5, "difference": 0.01}}
    states = [RunState.PUBLISHED, RunState.REJECTED, RunState.REJECTED, RunState.FAILED]
    with db.session() as session:
        for number in range(plan.versions):
            state = VersionState.SERVING if number == plan.versions - 1 else VersionState.RETIRED
            session.add(
                VersionRow(
                    id=f"default-{number}", draft="default", number=number, digest="0" * 64, kind="full", path="",
                    parent=f"default-{number - 1}" if number else None, run_id=None, state=state.value,
                    evidence={"before": 0.5, "after": 0.51, "difference": 0.01},
                    created_at=begin + number * plan.days * DAY / plan.versions,
                )
            )  # fmt: skip
        session.flush()
        session.execute(update(DraftRow).values(current_version=f"default-{plan.versions - 1}"))  # it is in each store
        for number, start in enumerate(range(begin, END, HOUR)):
            session.add(
                RunRow(
                    id=f"run-{number:06d}", draft="default", holder="bench", state=states[number % 4].value,
                    started_at=float(start), heartbeat_at=float(start), lease_until=float(start + MINUTE),
                    parent="default-0", request_ids=ids, settings={}, finished_at=float(start + 50), version=None,
                    result=facts,
                )
            )  # fmt: skip


def ask(db: Database, plan: MonitoringPlan) -> dict[str, list[float]]:
    """Return the milliseconds of each question, by its heading. Raises ValueError for one without an answer."""
    page = PAGE.read_text("utf-8")
    told = {"since": END - DAY, "version": f"default-{plan.versions - 1}"}
    found: dict[str, list[float]] = {}
    for question, query in re.findall(r"^### (.+?)\n+```sql\n(.*?)```", page, re.MULTILINE | re.DOTALL):
        given = {name: value for name, value in told.items() if f":{name}" in query}
        with db.engine.connect() as connection:
            if not connection.execute(text(query), given).fetchall():
                raise ValueError(f"{question} has no answer")
            for _ in range(plan.repeats):
                began = time.perf_counter()
                connection.execute(text(query), given).fetchall()
                found.setdefault(question, []).append(1000 * (time.perf_counter() - began))
    return found
