"""A year that never was: counters by the minute for many routes, versions and workers, summed as servers sum them.

The database makes the rows itself: millions of them would take Python an hour. What stands in the columns follows from
minute, route and worker by arithmetic, so both databases hold the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import text

from storage.sql.database import Database
from storage.sql.outcome_tables import COUNTS
from storage.sql.spans import DAY, HOUR, KEPT, MINUTE

END = 1_795_219_200
"""Where the year ends: 2026-11-21, a whole day in Unix seconds."""
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
