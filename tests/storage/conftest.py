"""A test that asks for a ``store`` gets an empty one: SQLite in a folder.

Modules that say ``DATABASES = True`` are the contract of the databases: they run over PostgreSQL too. Those that say
``PLACED = True`` are the contract of the places: they run over SQLite with a folder and over PostgreSQL with S3, but
for tests marked ``local``. Whatever else of the product of databases and places fits a test runs with ``-m long``.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import ItemsView, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import SQLAlchemyError

from storage import records
from storage.settings import Settings, load_settings
from storage.sql import database
from storage.sql.tables import Base
from storage.store import Store, open_store
from tests.storage.places import PLACES
from tests.storage.s3 import BUCKET, environment, shared_server

POSTGRES = os.environ.get("TEST_POSTGRES_URL", "postgresql+psycopg://root@127.0.0.1:5432/test")

DATABASES = ("sqlite", "postgresql")
PAIRS = [("sqlite", "folder"), ("postgresql", "s3")]
SHARED_MEMORY = "/dev/shm"


def admin(*statements: str) -> None:
    """Run statements that PostgreSQL takes outside transactions only."""
    engine = create_engine(POSTGRES, isolation_level="AUTOCOMMIT", connect_args={"connect_timeout": 5})
    try:
        with engine.connect() as connection:
            for statement in statements:
                connection.execute(text(statement))
    finally:
        engine.dispose()


def url_of(name: str) -> str:
    return make_url(POSTGRES).set(database=name).render_as_string(hide_password=False)


@contextmanager
def new_postgres() -> Iterator[str]:
    """The URL of a PostgreSQL database of its own, without a schema; skips the test when there is no server."""
    name = f"osd_test_{uuid.uuid4().hex[:12]}"
    try:
        admin(f"CREATE DATABASE {name}", f"ALTER DATABASE {name} SET synchronous_commit = off")
    except (SQLAlchemyError, ImportError) as error:
        pytest.skip(f"PostgreSQL is not reachable at {make_url(POSTGRES)!r}: {type(error).__name__}")
    yield url_of(name)
    admin(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def upgraded_postgres() -> Iterator[str]:
    """A PostgreSQL database with the newest schema, one for the whole run."""
    with new_postgres() as url:
        database.upgrade(url)
        yield url


@pytest.fixture
def postgres_url(upgraded_postgres: str) -> Iterator[str]:
    """That database with nothing in it but what the first migration put there."""
    yield upgraded_postgres
    engine = create_engine(upgraded_postgres)
    with engine.begin() as connection:
        for table in reversed(Base.metadata.sorted_tables):
            connection.execute(table.delete())
        connection.execute(text("INSERT INTO drafts (name, created_at) VALUES ('default', 0)"))
        connection.execute(
            text("INSERT INTO routes (name, draft, matches, created_at) VALUES ('default', 'default', '{}', 0)")
        )
    engine.dispose()


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in memory where the system has one: every write is synced, and hundreds of tests would wait for it."""
    parent = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="osd-test-", dir=parent))
    yield folder
    shutil.rmtree(folder)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Databases × places for those tests that have the settings from here."""
    if "settings" not in metafunc.fixturenames or hasattr(metafunc.module, "settings"):
        return
    placed = getattr(metafunc.module, "PLACED", False) and not metafunc.definition.get_closest_marker("local")
    databases = DATABASES if getattr(metafunc.module, "DATABASES", False) else DATABASES[:1]
    always = PAIRS if placed else [(db, "folder") for db in databases]
    metafunc.parametrize(
        "settings",
        [
            pytest.param((db, place), id=f"{db}-{place}", marks=() if (db, place) in always else pytest.mark.long)
            for place in (PLACES if placed else PLACES[:1])
            for db in DATABASES
        ],
        indirect=True,
    )


@pytest.fixture(scope="session")
def s3_endpoint() -> str:
    """A real S3 server, one for all modules that take this fixture."""
    return shared_server()


@pytest.fixture
def s3(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty folder on it, with the credentials in the environment."""
    for name, value in environment(s3_endpoint).items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{uuid.uuid4().hex}"


class Whole(dict[str, object]):
    """fsspec's files in memory, listed from a copy: where garbage is collected while fsspec makes a tuple of them,
    other threads may run and write ("dictionary changed size during iteration")."""

    def items(self) -> ItemsView[str, object]:
        return self.copy().items()


@pytest.fixture
def objects(monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty folder of objects in memory."""
    monkeypatch.setattr(MemoryFileSystem, "store", Whole())
    return f"memory://{uuid.uuid4().hex}"


@pytest.fixture
def settings(request: pytest.FixtureRequest, memory: Path) -> Settings:
    """Settings of an empty store; a tenth of the prompts is held out."""
    kind, place = request.param
    kept = {"directory": memory / "data", "cache": memory / "cache"}
    if place != "folder":
        top = request.getfixturevalue("objects" if place == "memory" else "s3")
        kept |= {"samples": f"{top}/samples", "weights": f"{top}/weights"}
    (memory / "data").mkdir()
    if kind == "postgresql":
        return load_settings(storage=kept | {"url": request.getfixturevalue("postgres_url")})
    shutil.copyfile(request.getfixturevalue("new_sqlite"), memory / "data" / "osd.db")
    return load_settings(storage=kept)


@pytest.fixture
def keep_all(settings: Settings) -> Iterator[Store]:
    """A store that holds nothing out."""
    kept = settings.storage.model_copy(update={"holdout": 0.0})
    with open_store(settings.model_copy(update={"storage": kept})) as opened:
        yield opened


@dataclass
class Clock:
    """Time that passes when a test says so."""

    seconds: float

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    it = Clock(1_800_000_000.0)
    monkeypatch.setattr(records, "now", it)
    return it
