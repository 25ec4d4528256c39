"""A year that never was: counters by the minute for many routes, versions and workers, summed as servers sum them; and
versions, training runs, the newest outcomes, kept requests.

The database makes the rows itself: millions of them would take Python an hour. What stands in the columns follows from
minute, route and worker by arithmetic, so both databases hold the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from sqlalchemy import text

from benchmarks.replay import draw_requests, register_draft, renewed
from storage.records import Outcome, RunState, VersionState
from storage.sql.database import Database
from storage.sql.outcome_tables import COUNTS, OutcomeRow
from storage.sql.spans import DAY, HOUR, KEPT, MINUTE
from storage.sql.tables import RunRow, VersionRow
from storage.store import Store

END = 1_795_219_200
"""Where the year ends: 2026-11-21, a whole day in Unix seconds."""
LOG_ROWS, TOP_K = 20_000, 64
PLACES = 6
"""Places of a draft that are counted."""


@dataclass(frozen=True, slots=True)
class StatsPlan:
    """How much there is."""

    days: int = 365
    routes: int = 20
    versions: int = 10
    workers: int = 8
    stride: int = 16
    """A worker has traffic on a route in one minute of so many; so every hour and day has all routes and workers."""
    requests: int = 400
    """Kept requests of each of the last two versions."""

    @property
    def begin(self) -> int:
        """Unix seconds of the first minute."""
        return END - self.days * DAY

    def version(self, number: int) -> str:
        """The id of a version, from 0 on; they serve one after another, equally long."""
        return f"default-{number:06d}-00000000"

    @property
    def turn(self) -> int:
        """Seconds for which a version serves."""
        return self.days * DAY // self.versions


_MINUTES = """
WITH RECURSIVE minutes(start) AS (
  SELECT CAST(:since AS BIGINT) UNION ALL SELECT start + 60 FROM minutes WHERE start + 60 < :until
),
routes(r) AS (SELECT 0 UNION ALL SELECT r + 1 FROM routes WHERE r + 1 < :routes),
workers(w) AS (SELECT 0 UNION ALL SELECT w + 1 FROM workers WHERE w + 1 < :workers),
traffic AS (
  SELECT start, r, w, start / 60 + r * 31 + w * 101 AS n,
    CASE WHEN start - :begin < w * 600 THEN 0
         WHEN (start - :begin - w * 600) / :turn >= :versions THEN :versions - 1
         ELSE (start - :begin - w * 600) / :turn END AS v
  FROM minutes CROSS JOIN routes CROSS JOIN workers
  WHERE (start / 60 * 7919 + r * 104729 + w * 1299709) % :stride = 0
),
named AS (
  SELECT *, 'route-' || CAST(r AS TEXT) AS route, 'default-00000' || CAST(v AS TEXT) || '-00000000' AS version,
    20 + n % 17 AS rounds, 45 + 3 * v + (r + n) % 7 AS accepted
  FROM traffic
)
"""
_SUMS = (
    _MINUTES
    + """
INSERT INTO outcome_counters
SELECT 60, start, route, version, CASE WHEN r % 2 = 0 THEN 'analytic' ELSE 'goodput' END,
  'tenant-' || CAST((r + w) % 5 AS TEXT), 'worker-' || CAST(w AS TEXT),
  1 + n % 3, rounds, rounds * 4, rounds * 4 * accepted / 100, rounds * 6 / 10, rounds * 4 * accepted / 100 + rounds,
  50 + n % 90, rounds * 6.0, rounds * 20.0 + rounds * 2.0
FROM named WHERE true
"""
)
_PLACES = (
    _MINUTES
    + """
, places(p) AS (SELECT 0 UNION ALL SELECT p + 1 FROM places WHERE p + 1 < :places)
INSERT INTO position_counters
SELECT 60, start, route, version, p, rounds, rounds * accepted / (100 + 20 * p), rounds * (p + 4) / 60
FROM named CROSS JOIN places WHERE w = 0
"""
)
_ROLLED = {
    "outcome_counters": (("route", "draft_version", "controller", "tenant", "worker"), COUNTS),
    "position_counters": (("route", "draft_version", "position"), ("drafted", "accepted", "refused")),
}


def add_days(db: Database, plan: StatsPlan, first: int, last: int) -> None:
    """Days ``first`` to before ``last`` of the plan, counted from 0, at every span that is kept."""
    since, until = plan.begin + first * DAY, plan.begin + last * DAY
    facts = {"routes": plan.routes, "workers": plan.workers, "versions": plan.versions, "stride": plan.stride}
    facts |= {"since": since, "until": until, "begin": plan.begin, "turn": plan.turn}
    with db.session() as session:
        session.execute(text(_SUMS), facts)
        session.execute(text(_PLACES), facts | {"places": PLACES})
        for table in _ROLLED:
            for finer, span in ((MINUTE, HOUR), (HOUR, DAY)):
                session.execute(text(_roll_up(table, finer, span)), {"since": since, "until": until})


def add_weeks(db: Database) -> None:
    """The weeks of the days that are there, anew."""
    week = KEPT[-1]
    with db.session() as session:
        for table in _ROLLED:
            session.execute(text(f"DELETE FROM {table} WHERE span = {week}"))
            session.execute(text(_roll_up(table, DAY, week)), {"since": 0, "until": END + DAY})


def _roll_up(table: str, finer: int, span: int) -> str:
    keys, counts = _ROLLED[table]
    names, start = ", ".join(keys), f"start - start % {span}"
    sums = ", ".join(f"sum({count})" for count in counts)
    return (
        f"INSERT INTO {table} (span, start, {names}, {', '.join(counts)}) SELECT {span}, {start}, {names}, {sums} "
        f"FROM {table} WHERE span = {finer} AND start >= :since AND start < :until GROUP BY {start}, {names}"
    )


def rows(db: Database) -> int:
    """Rows of counters."""
    with db.session(read_only=True) as session:
        return sum(int(session.scalar(text(f"SELECT count(*) FROM {table}")) or 0) for table in _ROLLED)


def add_versions(store: Store, plan: StatsPlan, folder: Path) -> None:
    """Number 0 with a small file of weights, and the others as rows: nobody loads them."""
    root = register_draft(store, folder)
    with store.db.session() as session:
        for number in range(plan.versions):
            last = number == plan.versions - 1
            session.add(
                VersionRow(
                    id=plan.version(number), draft="default", number=number + 1, digest="0" * 64, kind="full",
                    evidence={},
                    parent=plan.version(number - 1) if number else root.id, path="", run_id=None,
                    state=(VersionState.SERVING if last else VersionState.RETIRED).value,
                    created_at=float(plan.begin + number * plan.turn),
                )
            )  # fmt: skip


def add_runs(db: Database, plan: StatsPlan) -> None:
    """A training run every hour, each of 64 requests."""
    states = [RunState.PUBLISHED, RunState.REJECTED, RunState.REJECTED, RunState.FAILED]
    ids = [f"{number:032x}" for number in range(64)]
    with db.session() as session:
        for number, start in enumerate(range(plan.begin, END, HOUR)):
            facts = {"positions": 9000 + number % 500, "steps": 70, "seconds": 41.5, "evidence": {"difference": 0.01}}
            session.add(
                RunRow(
                    id=f"run-{number:06d}", draft="default", holder="bench", state=states[number % 4].value,
                    started_at=float(start), heartbeat_at=float(start), lease_until=float(start + MINUTE),
                    parent=plan.version(min(plan.versions - 1, (start - plan.begin) // plan.turn)), request_ids=ids,
                    settings={}, finished_at=float(start + 50), version=None, result=facts,
                )
            )  # fmt: skip


def add_log(db: Database, plan: StatsPlan) -> None:
    """As many of the newest outcomes one by one as a store keeps; drafts of three lengths."""
    rng = np.random.default_rng(0)
    drafted = rng.choice([2, 4, 8], LOG_ROWS)
    with db.session() as session:
        session.bulk_insert_mappings(OutcomeRow.__mapper__, [_line(plan, n, int(g)) for n, g in enumerate(drafted)])


def _line(plan: StatsPlan, number: int, gamma: int) -> dict[str, object]:
    made = Outcome(
        f"{number:032x}", f"route-{number % plan.routes}", "tenant-0", plan.version(plan.versions - 1), "analytic",
        float(END - LOG_ROWS + number), 1, 20, 20 * gamma, 10 * gamma, 12, 20 + 10 * gamma, 90, 30.0 * gamma,
        20 * (21.0 + 1.5 * gamma),
    )  # fmt: skip
    names = OutcomeRow.__table__.columns.keys()
    return {"worker": "worker-0"} | {name: getattr(made, name) for name in names if hasattr(made, name)}


def add_samples(store: Store, plan: StatsPlan) -> None:
    """Keep requests of the last two versions, in segments of 64."""
    count = 2 * plan.requests
    drawn = renewed(draw_requests(count, TOP_K), 0, END - count / 1000)
    kept = [
        replace(each, route=f"route-{n % plan.routes}", draft_version=plan.version(plan.versions - 2 + 2 * n // count))
        for n, each in enumerate(drawn)
    ]
    for at in range(0, count, 64):
        store.samples.add(kept[at : at + 64])
