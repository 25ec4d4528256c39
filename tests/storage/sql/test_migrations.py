"""The migrations lead to the tables, from wherever the package is installed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import JSON, Column, Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.dialects import postgresql, sqlite

from storage.sql import database, schema
from storage.sql.drivers import make_engine, parse_url
from storage.sql.tables import Base
from tests.storage.conftest import empty_database, new_postgres

ROOT = Path(__file__).parents[3]


@pytest.fixture(params=["sqlite", "postgresql"])
def migrated(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'osd.db'}"
        database.upgrade(url)
        yield from _engine(url)
    else:
        with new_postgres() as url:
            database.upgrade(url)
            yield from _engine(url)


def _engine(url: str) -> Iterator[Engine]:
    engine = make_engine(parse_url(url))
    yield engine
    engine.dispose()


def test_the_migrated_schema_is_that_of_the_tables(migrated: Engine) -> None:
    with migrated.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"compare_type": True, "compare_server_default": _differs}
        )
        assert compare_metadata(context, Base.metadata) == []


def _differs(_context: object, _found: object, column: Column[object], *defaults: str | None) -> bool | None:
    """Alembic would ask PostgreSQL whether two JSON values are equal, which it cannot say; the rest it compares."""
    found, _, wanted = defaults
    return (found or "").split("::")[0] != (wanted or "") if isinstance(column.type, JSON) else None


def test_reflection_finds_the_same_in_both(migrated: Engine, tmp_path: Path) -> None:
    """What compare_metadata does not look at: primary keys, names of constraints, which columns may be null."""
    if migrated.dialect.name == "sqlite":
        fresh = create_engine(f"sqlite:///{tmp_path / 'fresh.db'}")
        event.listen(fresh, "connect", lambda connection, _: connection.execute("PRAGMA foreign_keys=ON").close())
        Base.metadata.create_all(fresh)
        assert _described(fresh) == _described(migrated)
        fresh.dispose()
    else:
        with new_postgres() as url:
            fresh = create_engine(url)
            Base.metadata.create_all(fresh)
            assert _described(fresh) == _described(migrated)
            fresh.dispose()


def _described(engine: Engine) -> dict[str, object]:
    look = inspect(engine)
    dialect = sqlite.dialect() if engine.dialect.name == "sqlite" else postgresql.dialect()
    return {
        table: {
            "columns": sorted(
                (column["name"], column["type"].compile(dialect), column["nullable"], str(column["default"]))
                for column in look.get_columns(table)
            ),
            "primary key": look.get_pk_constraint(table)["name"],
            "key columns": look.get_pk_constraint(table)["constrained_columns"],
            "foreign keys": sorted((key["name"], key["referred_table"]) for key in look.get_foreign_keys(table)),
            "unique": sorted(str(unique["name"]) for unique in look.get_unique_constraints(table)),
            "indexes": sorted((str(index["name"]), tuple(index["column_names"])) for index in look.get_indexes(table)),
        }
        for table in look.get_table_names()
        if table != "alembic_version"
    }


def test_the_first_rows_are_there(migrated: Engine) -> None:
    with migrated.connect() as connection:
        assert connection.execute(text("SELECT name, draft FROM routes")).all() == [("default", "default")]
        assert connection.execute(text("SELECT name, current_version FROM drafts")).all() == [("default", None)]


def test_head_is_the_newest_revision(migrated: Engine) -> None:
    with migrated.connect() as connection:
        assert schema.revisions(schema.alembic_config(connection))[0] == schema.HEAD == schema.found(connection)


def test_every_migration_can_be_undone(migrated: Engine) -> None:
    with migrated.begin() as connection:
        command.downgrade(schema.alembic_config(connection), "base")
    assert inspect(migrated).get_table_names() == ["alembic_version"]


def test_a_migration_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(connection: object, url: str) -> tuple[None, None]:
        migrate(connection, url)
        raise ZeroDivisionError

    migrate = schema.migrate
    monkeypatch.setattr(schema, "migrate", failing)
    with pytest.raises(ZeroDivisionError):
        database.upgrade(f"sqlite:///{tmp_path / 'osd.db'}")
    engine = create_engine(f"sqlite:///{tmp_path / 'osd.db'}")
    assert inspect(engine).get_table_names() == []
    engine.dispose()


def test_migrations_are_found_from_an_installed_package(tmp_path: Path) -> None:
    """Copied to a folder with a space and a percent sign, and run from another: no alembic.ini, no checkout."""
    site = tmp_path / "site 100%"
    for package in ("storage", "migrations"):
        shutil.copytree(ROOT / package, site / package, ignore=shutil.ignore_patterns("__pycache__"))
    code = (
        f"import sys; sys.path.insert(0, {str(site)!r})\n"
        "from storage.sql import database, schema\n"
        f"assert database.upgrade('sqlite:///' + {str(tmp_path / 'osd.db')!r}) == (None, schema.HEAD)\n"
        "print(schema.__file__)"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(site / "storage" / "sql" / "schema.py")


# from an older release's database


def test_what_the_first_schema_held_is_there_after_the_upgrade(old: Engine) -> None:
    with old.begin() as connection:
        assert schema.migrate(connection, "old") == ("0001", schema.HEAD)
        served = connection.execute(text("SELECT worker, draft, version, since FROM serving ORDER BY worker")).all()
        assert served == [("one", "default", "default-000000-aa", 3.0), ("two", "sql", "sql-000000-bb", 4.0)]
        routes = connection.execute(text("SELECT name, draft, created_at FROM routes ORDER BY name")).all()
        made = connection.execute(text("SELECT created_at FROM drafts WHERE name = 'default'")).scalar_one()
        assert routes == [("default", "default", made), ("sql", "sql", None)]
        assert _json(connection, "SELECT candidates FROM routes") == [[], []]
        assert _json(connection, "SELECT matches FROM routes WHERE name = 'sql'") == [{"topic": ["sql"]}]
        assert _json(connection, "SELECT options FROM drafts") == [{}, {}]
        assert connection.execute(text("SELECT target FROM drafts")).scalars().all() == ["unnamed", "unnamed"]


def test_going_back_to_the_first_schema_keeps_what_it_knows(old: Engine) -> None:
    with old.begin() as connection:
        schema.migrate(connection, "old")
        connection.execute(text("INSERT INTO serving VALUES ('one', 'sql', 'sql-000000-bb', 9.0)"))
        command.downgrade(schema.alembic_config(connection), "0001")
        served = connection.execute(text("SELECT worker, version, since FROM serving ORDER BY worker")).all()
        assert served == [("one", "sql-000000-bb", 9.0), ("two", "sql-000000-bb", 4.0)]
        assert connection.execute(text("SELECT name, draft FROM routes ORDER BY name")).all() == [
            ("default", "default"), ("sql", "sql"),
        ]  # fmt: skip
        assert schema.migrate(connection, "old") == ("0001", schema.HEAD)


@pytest.fixture(params=["sqlite", "postgresql"])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """A database that the first schema made, with a few rows in the tables that changed later."""
    with empty_database(request.param, tmp_path) as engine:
        _fill(engine)
        yield engine


def _fill(engine: Engine) -> None:
    version = "INSERT INTO draft_versions VALUES (:id, :draft, 0, NULL, 'd', 'full', 'ready', 2.0, 'p', NULL, '{}')"
    with engine.begin() as connection:
        command.upgrade(schema.alembic_config(connection), "0001")
        connection.execute(text("INSERT INTO drafts VALUES ('sql', NULL, 2.0)"))
        connection.execute(text("INSERT INTO routes VALUES ('sql', 'sql', '{\"topic\": [\"sql\"]}')"))
        for draft, number in (("default", "default-000000-aa"), ("sql", "sql-000000-bb")):
            connection.execute(text(version), {"id": number, "draft": draft})
        connection.execute(text("INSERT INTO serving VALUES ('one', 'default-000000-aa', 3.0)"))
        connection.execute(text("INSERT INTO serving VALUES ('two', 'sql-000000-bb', 4.0)"))


def _json(connection: Connection, query: str) -> list[object]:
    """A JSON column; SQLite gives its text."""
    values = connection.execute(text(query)).scalars()
    return [json.loads(value) if isinstance(value, str) else value for value in values]
