"""Opening databases: what is refused, what an error says, and that no password is shown."""

from __future__ import annotations

import os
import pickle
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import text

from storage.errors import (
    BadSetting,
    DatabaseUnreachable,
    OsdError,
    SchemaOutdated,
    SchemaTooNew,
    SchemaTooOld,
    StoreError,
    StoreWriteFailed,
)
from storage.settings import Settings, load_settings
from storage.sql import database
from storage.sql.database import Database
from storage.sql.drivers import plain
from storage.sql.schema import HEAD
from storage.sql.tables import DraftRow
from storage.store import Store, open_store
from tests.storage.child import join, start_child
from tests.storage.conftest import new_postgres
from tests.storage.make import at_once, outcome

DATABASES = True  # see conftest.py


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that nobody listens on."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def opened(tmp_path: Path, url: str | None) -> Store:
    return open_store(load_settings(storage={"directory": tmp_path / "data", "url": url}))


@pytest.mark.parametrize(
    "url",
    ["nonsense", "mysql://me:secret@host/osd", "sqlite://", "sqlite:///:memory:", "postgresql://me:secret@host:port/x"],
)
def test_a_url_that_names_no_database_of_ours(tmp_path: Path, url: str) -> None:
    with pytest.raises(BadSetting, match=r"storage\.url") as caught:
        opened(tmp_path, url)
    assert "secret" not in str(caught.value) and caught.value.exit_code == 2


@pytest.mark.parametrize("place", ["me:secret@127.0.0.1:{port}/osd", "127.0.0.1:{port}/osd?user=me&password=secret"])
def test_a_server_that_does_not_answer(tmp_path: Path, closed_port: int, place: str) -> None:
    url = "postgresql://" + place.format(port=closed_port)
    for attempt in (lambda: opened(tmp_path, url), lambda: database.upgrade(url), lambda: database.check(url)):
        with pytest.raises(DatabaseUnreachable, match="does not answer") as caught:
            attempt()
        assert "secret" not in str(caught.value) and str(closed_port) in str(caught.value)
        assert caught.value.exit_code == 5
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_database_that_is_not_there(tmp_path: Path, postgres_url: str) -> None:
    with pytest.raises(DatabaseUnreachable, match="nosuchdatabase"):
        opened(tmp_path, postgres_url.rsplit("/", 1)[0] + "/nosuchdatabase")


@pytest.mark.parametrize("url", ["postgresql://me:secret@host/osd", "postgres://host/osd?password=secret&user=me"])
def test_passwords_are_masked(url: str) -> None:
    shown = Database(url).url
    assert "secret" not in shown and "me" in shown and shown.startswith("postgresql+psycopg://")


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "osd.db").write_text("this is a text, and a long one at that, so that SQLite reads a header" * 20)
    with pytest.raises(DatabaseUnreachable, match="not a database"):
        opened(tmp_path, f"sqlite:///{tmp_path / 'osd.db'}")


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreWriteFailed):
        open_store(load_settings(storage={"directory": tmp_path / "file" / "data"}))
    with pytest.raises(StoreWriteFailed):
        opened(tmp_path, f"sqlite:///{tmp_path / 'file' / 'osd.db'}")


def test_the_data_directory_is_its_owners(tmp_path: Path) -> None:
    opened(tmp_path, None).close()
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700


def test_checking_changes_nothing(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'sub' / 'osd.db'}"
    facts = database.check(url)
    assert (facts["found"], facts["current"], list(tmp_path.iterdir())) == (None, False, [])
    assert database.upgrade(url) == (None, HEAD)
    facts = database.check(url)
    assert (facts["found"], facts["needed"], facts["current"], facts["dialect"]) == (HEAD, HEAD, True, "sqlite")
    assert facts["milliseconds"] > 0 and facts["server"]


def test_postgres_is_upgraded_on_demand_only(tmp_path: Path) -> None:
    with new_postgres() as url:
        assert database.check(url)["current"] is False
        with pytest.raises(SchemaOutdated, match="osd db upgrade"):
            opened(tmp_path, url)
        assert database.upgrade(url) == (None, HEAD)
        assert database.upgrade(url) == (HEAD, HEAD)
        opened(tmp_path, url).close()


def test_upgrades_at_once_do_the_work_once(tmp_path: Path) -> None:
    with new_postgres() as postgres:
        for url in (postgres, f"sqlite:///{tmp_path / 'osd.db'}"):
            done = at_once(*[partial(database.upgrade, url)] * 3)
            assert sorted(done, key=str) == [(HEAD, HEAD), (HEAD, HEAD), (None, HEAD)]


@pytest.mark.parametrize(
    ("found", "kind", "advice"),
    [
        ("0000", SchemaTooNew, "Update osd"),
        ("0001", SchemaTooOld, "002f94b5"),
        ("0016", SchemaTooOld, "002f94b5"),
        ("9999", SchemaTooNew, "Update osd"),
    ],
)
def test_another_schema_is_refused(settings: Settings, found: str, kind: type[SchemaOutdated], advice: str) -> None:
    with open_store(settings) as store, store.db.session() as session:
        session.execute(text("UPDATE alembic_version SET version_num = :found"), {"found": found})
    with pytest.raises(kind, match=found):
        open_store(settings)
    with pytest.raises(kind, match=advice):
        database.upgrade(settings.storage.database_url())
    with closing(Database(settings.storage.database_url())) as db, db.session() as session:
        # the next test finds it as it was
        session.execute(text("UPDATE alembic_version SET version_num = :head"), {"head": HEAD})


def test_somebody_elses_sqlite_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    with pytest.raises(SchemaOutdated, match="none"):
        opened(tmp_path, f"sqlite:///{path}")


def test_a_session_commits_rolls_back_and_translates(store: Store) -> None:
    with store.db.session() as session:
        session.add(DraftRow(name="kept", current_version=None, created_at=0.0))
    with pytest.raises(ZeroDivisionError), store.db.session() as session:
        session.add(DraftRow(name="undone", current_version=None, created_at=0.0))
        session.flush()
        raise ZeroDivisionError
    with pytest.raises(StoreError) as caught, store.db.session() as session:
        session.add(DraftRow(name="kept", current_version=None, created_at=0.0))
    assert type(caught.value) is StoreError and "kept" not in str(caught.value).replace(str(store.db.url), "")
    with store.db.session(read_only=True) as session:
        assert session.get(DraftRow, "kept") and not session.get(DraftRow, "undone")


def test_values_that_a_driver_cannot_encode(store: Store) -> None:
    for bad in (outcome(tenant="\udcff"), outcome(rounds=2**80)):
        with pytest.raises(StoreError):
            store.outcomes.add([bad], "w")
    assert store.outcomes.acceptance() == []


def test_a_writer_that_waits_too_long_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.sql.drivers.BUSY_SECONDS", 0.1)
    with opened(tmp_path, None) as store, opened(tmp_path, None) as other:
        with store.db.session() as session:
            session.execute(text("SELECT 1"))
            with pytest.raises(StoreError, match="busy"):
                other.outcomes.add([outcome()], "w")
        other.outcomes.add([outcome()], "w")


def test_readers_do_not_wait_for_writers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.sql.drivers.BUSY_SECONDS", 0.1)
    with opened(tmp_path, None) as store, store.db.session() as session:
        session.execute(text("DELETE FROM routes"))
        assert [route.name for route in store.routes.list()] == ["default"]
        assert store.versions.list() == []


def test_a_new_directory_opened_by_many_processes(tmp_path: Path) -> None:
    """All of them may find no file and start the migration; one does it."""
    settings = load_settings(storage={"directory": tmp_path / "data"})
    children = [start_child(settings, "write", "1", "w") for _ in range(5)]
    assert [join(child) for child in children] == [0] * 5
    with open_store(settings) as store:
        assert store.outcomes.acceptance()[0].requests == 5 * 7
        assert [route.name for route in store.routes.list()] == ["default"]


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # of Python 3.12, about os.fork
def test_a_forked_child_uses_connections_of_its_own(store: Store) -> None:
    store.outcomes.add([outcome()], "parent")
    with store.db.engine.connect() as connection:
        parents = connection.connection.dbapi_connection
    pid = os.fork()
    if pid == 0:
        try:
            store.outcomes.add([outcome()], "child")
            with store.db.engine.connect() as connection:
                os._exit(connection.connection.dbapi_connection is parents)
        except BaseException:
            os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0
    store.outcomes.add([outcome()], "parent")
    assert store.outcomes.acceptance()[0].requests == 3


def test_a_restarted_server_is_reconnected_to(tmp_path: Path, postgres_url: str) -> None:
    """The server ends our connections, as it does when it restarts."""
    with opened(tmp_path, postgres_url) as store:
        store.routes.list()
        with closing(Database(postgres_url)) as db, db.session() as session:
            others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
            session.execute(text(f"{others} AND pid <> pg_backend_pid()"))
        assert [route.name for route in store.routes.list()] == ["default"]


def test_a_connection_lost_in_a_transaction_is_unreachable(tmp_path: Path, postgres_url: str) -> None:
    with opened(tmp_path, postgres_url) as store, pytest.raises(DatabaseUnreachable), store.db.session() as session:
        mine = session.scalar(text("SELECT pg_backend_pid()"))
        with closing(Database(postgres_url)) as db, db.session() as other:
            other.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": mine})
        session.execute(text("SELECT 1"))


def test_only_our_errors_cross_the_edge_without_psycopg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(BadSetting, match=r"pip install '\.\[postgres\]'"):
        Database("postgresql://host/osd")


def test_opening_a_store_loads_neither_alembic_nor_arrow(tmp_path: Path) -> None:
    """`osd stats` is to start at once."""
    opened(tmp_path, None).close()
    code = (
        "import sys; from pathlib import Path; from storage.settings import load_settings\n"
        "from storage.store import open_store\n"
        f"store = open_store(load_settings(storage={{'directory': Path({str(tmp_path / 'data')!r})}}))\n"
        "store.outcomes.acceptance(), store.samples.stats(), store.versions.list()\n"
        "print(sorted({'alembic', 'pyarrow', 'torch', 'sklearn', 'celery', 'psycopg'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_plain_makes_json_of_numpy_and_paths() -> None:
    import numpy as np

    value = {"a": np.float32(0.5), "b": (np.int64(3), float("inf")), "c": Path("x"), 4: None, "d": True}
    assert plain(value) == {"a": 0.5, "b": [3, None], "c": "x", "4": None, "d": True}
    with pytest.raises(TypeError):
        plain(object())


def test_every_error_is_ours(tmp_path: Path) -> None:
    for kind in (BadSetting, DatabaseUnreachable, SchemaOutdated, StoreError, StoreWriteFailed):
        assert issubclass(kind, OsdError)
