"""From a database of the third schema that holds counters to 0004 and back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import Connection, Engine, inspect, text

from storage.sql import schema
from storage.sql.spans import DAY, WEEK
from tests.storage.conftest import empty_database

COUNTER = (
    "INSERT INTO outcome_counters VALUES (:span, :start, 'sql', 'v0', 'fixed', :tenant, 'w', "
    "1, 10, 40, 30, 8, 40, 12, 1.5, 2.5)"
)
FIRST = 2_800 * WEEK


@pytest.fixture(params=["sqlite", "postgresql"])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    with empty_database(request.param, tmp_path) as engine:
        _fill(engine)
        yield engine


def _fill(engine: Engine) -> None:
    """Two days of one week and one of the next, and an hour that a day has in it already."""
    with engine.begin() as connection:
        command.upgrade(schema.alembic_config(connection), "0003")
        for start in (FIRST, FIRST + 6 * DAY, FIRST + WEEK):
            connection.execute(text(COUNTER), {"span": DAY, "start": start, "tenant": "t"})
        connection.execute(text(COUNTER), {"span": DAY, "start": FIRST, "tenant": "u"})
        connection.execute(text(COUNTER), {"span": 3_600, "start": FIRST, "tenant": "t"})


def _weeks(connection: Connection) -> list[tuple[object, ...]]:
    query = "SELECT start, tenant, requests, drafted, draft_ms FROM outcome_counters WHERE span = 604800 ORDER BY 1, 2"
    return [tuple(row) for row in connection.execute(text(query))]


def test_weeks_are_the_sums_of_their_days(old: Engine) -> None:
    with old.begin() as connection:
        assert schema.migrate(connection, "old") == ("0003", schema.HEAD)
        first = [(FIRST, "t", 2, 80, 3.0), (FIRST, "u", 1, 40, 1.5)]
        assert _weeks(connection) == [*first, (FIRST + WEEK, "t", 1, 40, 1.5)]


def test_going_back_leaves_what_was_there(old: Engine) -> None:
    query = text("SELECT * FROM outcome_counters ORDER BY span, start, tenant")
    with old.begin() as connection:
        before = [tuple(row) for row in connection.execute(query)]
        schema.migrate(connection, "old")
        command.downgrade(schema.alembic_config(connection), "0003")
        assert [tuple(row) for row in connection.execute(query)] == before
        assert not inspect(connection).has_table("position_counters")
