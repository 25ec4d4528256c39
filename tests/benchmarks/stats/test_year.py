"""The synthetic year is one that servers could have left, the same in both databases."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import text

from benchmarks.stats.bench import STAGES, Stage, figures_of, measure
from benchmarks.stats.year import END, StatsPlan, add_days, add_weeks
from osd.bench.harness.watch import Watch
from storage.errors import BadInput
from storage.settings import load_settings
from storage.sql.spans import DAY, KEPT
from storage.store import Store, open_store
from tests.benchmarks.conftest import BenchOutcome
from tests.storage.conftest import (  # noqa: F401
    memory,
    new_sqlite,
    postgres_url,
    settings,
    upgraded_postgres,
)

PLAN = StatsPlan(days=9, routes=3, versions=2, workers=2)
BOTH = pytest.mark.parametrize(
    "settings", [("sqlite", "folder"), ("postgresql", "folder")], ids=["sqlite", "postgresql"], indirect=True
)


@BOTH
def test_every_span_has_the_same_sums(store: Store) -> None:
    for day in range(9):
        add_days(store.db, PLAN, day, day + 1)
    add_weeks(store.db)
    add_weeks(store.db)
    for table, column in (("outcome_counters", "drafted"), ("position_counters", "refused")):
        with store.db.session(read_only=True) as session:
            found = session.execute(text(f"SELECT span, sum({column}), count(*) FROM {table} GROUP BY span")).all()
        assert sorted(row[0] for row in found) == list(KEPT)
        assert len({int(row[1]) for row in found}) == 1
        assert int(found[0][1]) > 0


@BOTH
def test_days_have_every_route_version_and_worker_and_sums_that_fit(store: Store) -> None:
    add_days(store.db, PLAN, 0, 9)
    add_weeks(store.db)
    rows = store.outcomes.acceptance(["day", "route", "worker"])
    assert len(rows) == 9 * 3 * 2
    assert {row.by["day"] for row in rows} == {END - days * DAY for days in range(1, 10)}
    assert len(store.outcomes.acceptance(["version"])) == 2
    for row in rows:
        assert row.rejections <= row.rounds
        assert row.accepted + row.rejections <= row.drafted
        assert row.emitted == row.accepted + row.rounds


def test_both_databases_hold_the_same_year(memory: Path, new_sqlite: Path, postgres_url: str) -> None:  # noqa: F811
    found = []
    for url in (None, postgres_url):
        folder = memory / ("pg" if url else "lite")
        folder.mkdir()
        if url is None:
            shutil.copyfile(new_sqlite, folder / "osd.db")
        with open_store(load_settings(storage={"directory": folder, "url": url})) as opened:
            add_days(opened.db, PLAN, 0, 9)
            found.append([row.as_dict() for row in opened.outcomes.acceptance(["route", "version", "tenant", "day"])])
    assert found[0] == found[1]


def test_each_question_has_an_answer_at_every_stage(tmp_path: Path) -> None:
    plan = StatsPlan(days=24, routes=3, versions=3, workers=2, requests=8)
    found: dict[str, list[Stage]] = {"sqlite": measure(plan, tmp_path, None, 1, Watch())}
    figures = figures_of(found)
    assert len(found["sqlite"]) == len(figures["growth"]["sqlite"]) == len(STAGES)
    assert figures["postgresql"] is None
    ms = figures["sqlite"]
    assert {"acceptance route", "positions", "change, 1 day", "tokens", "rejections"} <= ms.keys()
    assert figures["max_ms"] == max(ms.values())
    with pytest.raises(BadInput, match="not empty"):
        measure(plan, tmp_path, None, 1, Watch())


def test_the_command_prints_one_line_and_draws(bench: Callable[..., BenchOutcome], tmp_path: Path) -> None:
    done = bench("stats", "--small", "--repeats", "1", "--json", "--picture", tmp_path / "growth.png")
    assert done.exit_code == 0, done.stderr
    line = json.loads(done.stdout.splitlines()[-1])["figures"]
    assert {"sqlite", "postgresql", "max_ms", "rows"} <= line.keys()
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")
    assert bench("stats", "--small", "--folder", tmp_path).exit_code == 2
