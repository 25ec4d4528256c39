"""`python -m benchmarks monitoring`: the ten questions are asked of what servers would have summed."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

from sqlalchemy import text

from benchmarks.monitoring import END, MonitoringPlan, fill
from storage.sql.database import Database
from tests.benchmarks.conftest import Bench

SMALL = ("--days", 9, "--routes", 2, "--versions", 3, "--stride", 5, "--repeats", 1)


def test_ten_questions_are_asked(bench: Bench) -> None:
    done = bench("monitoring", *SMALL, "--json")
    assert done.exit_code == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])["figures"]
    assert len(figures["sqlite"]) == 10 and figures["rows"] > 9 * 1440 * 2 * 2 / 5 and "postgresql" not in figures


def test_every_span_has_the_same_sums(tmp_path: Path) -> None:
    with closing(Database(f"sqlite:///{tmp_path}/osd.db")) as db:
        db.upgrade()
        fill(db, MonitoringPlan(days=9, routes=2, versions=3, stride=5))
        with db.session(read_only=True) as session:
            for table, summed in (("outcome_counters", "emitted"), ("position_counters", "refused")):
                query = f"SELECT span, sum({summed}), min(start), max(start) FROM {table} GROUP BY span"
                found = {span: rest for span, *rest in session.execute(text(query))}
                assert len(found) == 4 and len({total for total, _, _ in found.values()}) == 1
                assert found[60][1] >= END - 9 * 86400 and found[60][2] < END
