"""From a database of the eleventh schema with two trails to 0012 with one, and back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import Connection, Engine, text

from storage.sql import schema
from tests.storage.conftest import empty_database

ADMIN = [
    (4, "ada", "forget", "r1", {"what": "request", "requests": 1}),
    (5, "ada", "tenant", "acme", {"before": {"share": True}, "after": {"share": False}}),
    (6, "bob", "key", "key-1", {"created": {"tenant": "acme"}}),
    (7, "bob", "key", "key-1", {"revoked": 9.0}),
    (8, "bob", "engine", "e", {"before": None, "after": {"url": "u"}}),
    (9, "bob", "engine", "e", {"removed": {"url": "u"}}),
    (10, "bob", "rollback", "v1", {"draft": "default"}),
    (11, "bob", "drain", "w", {"undone": False}),
]
ROUTES = [(1, "cy", "add", "sql", {}, {"draft": "sql"}), (2, "cy", "teach", None, {}, {"topics": ["sql"]})]
WANTED = [
    (4, "replay forget", "r1", {}, {"what": "request", "requests": 1}),
    (5, "replay tenant", "acme", {"share": True}, {"share": False}),
    (6, "keys create", "key-1", {}, {"tenant": "acme"}),
    (7, "keys revoke", "key-1", {}, {"revoked": 9.0}),
    (8, "engines add", "e", {}, {"url": "u"}),
    (9, "engines remove", "e", {"url": "u"}, {}),
    (10, "drafts rollback", "v1", {}, {"draft": "default"}),
    (11, "servers drain", "w", {}, {"undone": False}),
    (12, "router add", "sql", {}, {"draft": "sql"}),
    (13, "router teach", None, {}, {"topics": ["sql"]}),
]


@pytest.fixture(params=["sqlite", "postgresql"])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    with empty_database(request.param, tmp_path) as engine:
        with engine.begin() as connection:
            command.upgrade(schema.alembic_config(connection), "0011")
            for number, who, action, subject, facts in ADMIN:
                row = {"id": number, "who": who, "action": action, "subject": subject, "facts": json.dumps(facts)}
                insert = "INSERT INTO admin_changes VALUES (:id, 1.5, :who, :action, :subject, :facts)"
                connection.execute(text(insert), row)
            for number, who, action, route, before, after in ROUTES:
                facts = {"before": json.dumps(before), "after": json.dumps(after)}
                insert = "INSERT INTO route_changes VALUES (:id, 2.5, :who, :action, :route, :before, :after)"
                connection.execute(text(insert), {"id": number, "who": who, "action": action, "route": route, **facts})
        yield engine


def lines(connection: Connection) -> list[tuple[object, ...]]:
    query = "SELECT id, action, subject, before, after FROM audit ORDER BY id"
    return [(*row[:3], *map(as_json, row[3:])) for row in connection.execute(text(query))]


def as_json(value: object) -> object:
    return json.loads(value) if isinstance(value, str) else value


def test_both_trails_become_one_under_the_commands_names(old: Engine) -> None:
    with old.begin() as connection:
        assert schema.migrate(connection, "old") == ("0011", schema.HEAD)
        assert lines(connection) == WANTED, "the numbers of admins' lines stay: tables of n-grams name them"
        values = "(at, who, origin, action, before, after) VALUES (3, 'd', 'cli', 'x', '{}', '{}')"
        connection.execute(text(f"INSERT INTO audit {values}"))
        assert lines(connection)[-1][0] == 14


def test_going_back_leaves_the_lines_where_they_were(old: Engine) -> None:
    with old.begin() as connection:
        schema.migrate(connection, "old")
        command.downgrade(schema.alembic_config(connection), "0011")
        admin = connection.execute(text("SELECT id, who, subject FROM admin_changes ORDER BY id"))
        assert [tuple(row) for row in admin] == [(number, who, subject) for number, who, _, subject, _ in ADMIN]
        routes = connection.execute(text("SELECT id, who, action, route FROM route_changes ORDER BY id"))
        assert [tuple(row) for row in routes] == [row[:4] for row in ROUTES]
