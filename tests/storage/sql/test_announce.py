"""Word of new versions: heard at once from another process, again after the connection broke, and never needed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from storage.settings import Settings, load_settings
from storage.sql.announce import Announcer, announce
from storage.sql.database import Database
from storage.store import Store, open_store
from tests.storage.child import run_child
from tests.storage.make import add_root, samples
from tests.support.waiting import PATIENCE, until

LISTENERS = "FROM pg_stat_activity WHERE query LIKE 'LISTEN osd_versions%' AND datname = current_database()"


@pytest.fixture
def settings(memory: Path, postgres_url: str) -> Settings:
    return load_settings(storage={"directory": memory / "data", "url": postgres_url})


@pytest.fixture
def heard(store: Store) -> Iterator[threading.Event]:
    """Set by every word; the one that says that listening has begun is taken."""
    event = threading.Event()
    leave = store.announcer.subscribe(event.set)
    assert event.wait(PATIENCE)
    event.clear()
    yield event
    leave()


def test_a_publication_in_another_process_is_heard(
    store: Store, settings: Settings, heard: threading.Event, tmp_path: Path
) -> None:
    add_root(store, tmp_path / "model")
    assert heard.wait(PATIENCE), "number 0 became current"
    store.samples.add([samples(1)])
    heard.clear()
    status, _ = run_child(settings, "train", "publish: nowhere")
    assert status == 0
    assert heard.wait(PATIENCE)
    heard.clear()
    store.versions.rollback("default", "fell")
    assert heard.wait(PATIENCE), "going back is another version too"


def test_nothing_is_heard_of_what_was_not_committed(store: Store, heard: threading.Event, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), store.db.session() as session:
        announce(session, "default")
        raise ZeroDivisionError
    assert not heard.is_set()
    with store.db.session() as session:  # words arrive in the order of commits
        announce(session, "default")
    assert heard.wait(PATIENCE)


def test_a_listener_listens_again_once_it_was_cut(store: Store, heard: threading.Event, tmp_path: Path) -> None:
    with store.db.session() as session:
        assert session.execute(text(f"SELECT count(*) {LISTENERS}")).scalar_one() == 1
        session.execute(text(f"SELECT pg_terminate_backend(pid) {LISTENERS}"))
    assert heard.wait(PATIENCE), "it looks once it listens again: something may have been said meanwhile"
    heard.clear()
    add_root(store, tmp_path / "model")
    assert heard.wait(PATIENCE)


def test_the_last_to_leave_ends_the_connection(store: Store) -> None:
    begun = threading.Event()
    leave_first, leave_last = store.announcer.subscribe(begun.set), store.announcer.subscribe(lambda: None)
    assert begun.wait(PATIENCE)
    for leave, left in ((leave_first, 1), (leave_last, 0)):
        leave()
        leave()
        assert [thread.name for thread in threading.enumerate()].count("osd-listen") == left


def test_sqlite_tells_nobody(memory: Path) -> None:
    with open_store(load_settings(storage={"directory": memory / "plain"})) as plain:
        assert not plain.announcer.hears
        leave = plain.announcer.subscribe(lambda: None)
        add_root(plain, memory / "model")
        assert "osd-listen" not in [thread.name for thread in threading.enumerate()]
        leave()


def test_a_server_that_is_away_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    """Who subscribes is not kept waiting, and who leaves neither."""
    away = Announcer(Database("postgresql://nobody:secret@127.0.0.1:1/none"))
    leave = away.subscribe(lambda: None)
    until(lambda: "not heard" in caplog.text)
    leave()
    assert "not heard" in caplog.text and "secret" not in caplog.text
