"""From a database that the second schema made and traffic filled, to 0003 and back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import Connection, Engine, inspect, text

from storage.sql import schema
from tests.storage.conftest import empty_database

VERSION = "INSERT INTO draft_versions VALUES ('v0', 'default', 0, NULL, 'd', 'full', 'ready', 2.0, 'p', NULL, '{}')"
RUN = (
    "INSERT INTO training_runs VALUES ('run', 'default', 'w', 'published', 1.0, 2.0, 3.0, 'v0', '[\"a\"]', '{}', 4.0, "
    "NULL, '{}')"
)
SEGMENT = "INSERT INTO segments VALUES ('s', 'day/s.parquet', 1.0, 2, 6, 100)"
SAMPLE = "INSERT INTO sample_requests VALUES (:id, 's', :row, 'default', 't', 'v0', 1.0, 5, 9, 3, 50, :out, :run)"


@pytest.fixture(params=["sqlite", "postgresql"])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    with empty_database(request.param, tmp_path) as engine:
        _fill(engine)
        yield engine


def _fill(engine: Engine) -> None:
    with engine.begin() as connection:
        command.upgrade(schema.alembic_config(connection), "0002")
        for statement in (VERSION, RUN, SEGMENT):
            connection.execute(text(statement))
        connection.execute(text(SAMPLE), {"id": "a", "row": 0, "out": False, "run": "run"})
        connection.execute(text(SAMPLE), {"id": "b", "row": 1, "out": True, "run": None})


def _kept(connection: Connection) -> list[tuple[object, ...]]:
    query = "SELECT request_id, tenant, positions, claimed_by FROM sample_requests ORDER BY request_id"
    return [tuple(row) for row in connection.execute(text(query))]


def test_what_was_kept_is_there_and_what_is_new_is_empty(old: Engine) -> None:
    with old.begin() as connection:
        before = _kept(connection)
        assert before == [("a", "t", 3, "run"), ("b", "t", 3, None)]
        command.upgrade(schema.alembic_config(connection), "0003")
        assert _kept(connection) == before
        columns = "SELECT prompt_hash, divergence FROM sample_requests"
        assert connection.execute(text(columns)).all() == [(None, None)] * 2
        replayed, tenants = connection.execute(text("SELECT replayed, tenants FROM training_runs")).one()
        assert (replayed or "[]", tenants or "[]") == ("[]", "[]")
        connection.execute(text("INSERT INTO tenants (name) VALUES ('t')"))
        learn, share = connection.execute(text("SELECT learn, share FROM tenants")).one()
        assert (bool(learn), bool(share)) == (True, True)


def test_going_back_keeps_the_samples(old: Engine) -> None:
    with old.begin() as connection:
        before = _kept(connection)
        command.upgrade(schema.alembic_config(connection), "0003")
        command.downgrade(schema.alembic_config(connection), "0002")
        assert _kept(connection) == before
        assert not {"tenants", "admin_changes"} & set(inspect(connection).get_table_names())
        assert "divergence" not in {column["name"] for column in inspect(connection).get_columns("sample_requests")}
        command.upgrade(schema.alembic_config(connection), "0003")
        assert _kept(connection) == before
