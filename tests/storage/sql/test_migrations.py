"""The migrations lead to the tables, from wherever the package is installed."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import JSON, Column, Engine, create_engine, event, inspect, text
from sqlalchemy.dialects import postgresql, sqlite

from storage.errors import SchemaOutdated
from storage.records import VersionState
from storage.settings import load_settings
from storage.sql import database, schema
from storage.sql.drivers import make_engine, parse_url
from storage.sql.tables import Base
from storage.store import open_store
from tests.storage.conftest import new_postgres

ROOT = Path(__file__).parents[3]
BEFORE = Path(__file__).with_name("store_0017.sql")
"""A store of schema 0017 with a few rows, made by the migrations 0001 to 0017."""


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
    assert inspect(migrated).get_table_names() == ["alembic_version"] and not inspect(migrated).get_view_names()


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


# from a store that the sixteen migrations made which were here before


def test_a_store_of_before_opens_and_is_read(tmp_path: Path) -> None:
    settings = load_settings(storage={"directory": tmp_path})
    with closing(sqlite3.connect(tmp_path / "osd.db")) as made:
        made.executescript(BEFORE.read_text())
    with pytest.raises(SchemaOutdated, match=r"schema 0017.*osd db upgrade"):
        open_store(settings)
    database.upgrade(f"sqlite:///{tmp_path / 'osd.db'}")
    with open_store(settings) as store:
        version = store.versions.current("default")
        assert (version.state, version.parent) == (VersionState.SERVING, store.versions.list()[0].id)
        assert store.decisions.holds()["default"].version == store.versions.get("default:good").id == version.id
        assert store.runs.list()[0].request_ids == ("r0", "r1")
        assert store.samples.kept(["r0", "r1", "r2"]) == {"r0", "r2"} and store.samples.waiting("default").requests == 1
        assert store.outcomes.acceptance(["version"])[0].by == {"version": version.id}
        assert store.outcomes.recent()[0].accepted == 30
        assert store.routes.plan().pins == {"acme": "tables"} and store.routes.plan().aliases == {"sql": "tables"}
        assert store.examples.list() == [("sql", "SELECT 1")] and not store.tenants.get("acme").share
        assert [entry.action for entry in store.trail.history(limit=2)] == ["replay forget", "engines add"]
        assert (store.keys.list()[0].name, store.engines.list()[0].name) == ("ci", "vllm-1")
        assert (store.servers.list()[0].id, store.trainers.list()[0].id) == ("server-1", "trainer-1")
        assert store.targets.newest() == store.versions.target_of("default")


def test_its_schema_is_that_of_a_new_store(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "before.db")) as made:
        made.executescript(BEFORE.read_text())
    for name in ("before.db", "new.db"):
        database.upgrade(f"sqlite:///{tmp_path / name}")
    before, new = (create_engine(f"sqlite:///{tmp_path / name}") for name in ("before.db", "new.db"))
    assert _described(before) == _described(new)
    before.dispose(), new.dispose()
