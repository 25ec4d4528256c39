"""Notifications that a draft's current version has changed, through PostgreSQL's LISTEN and NOTIFY.

    announce(session, draft)       call in the transaction that changes what is current; delivered when it commits
    announcer.subscribe(wake)      call ``wake`` after every notification; returns a function that unsubscribes

SQLite has no notifications: nothing is sent and nobody is called. Followers of versions therefore poll at an interval,
on PostgreSQL too, so a lost notification costs one interval and a doubled one costs one query.
"""

from __future__ import annotations

import logging
import os
import selectors
import threading
from collections.abc import Callable
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from storage.sql.database import Database
from storage.sql.drivers import CONNECT_SECONDS

log = logging.getLogger(__name__)

CHANNEL = "osd_versions"
RETRY_SECONDS = 1.0
"""Seconds between attempts to listen again, doubled up to :data:`LONGEST_RETRY_SECONDS`."""
LONGEST_RETRY_SECONDS = 30.0
OPTIONS: dict[str, Any] = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
"""libpq options that detect a dead idle connection within about a minute."""
OPTIONS |= {"connect_timeout": CONNECT_SECONDS}

Wake = Callable[[], object]


def announce(session: Session, draft: str) -> None:
    """Notify listeners, once the transaction commits, that another version of the draft should serve."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text("SELECT pg_notify(:channel, :draft)"), {"channel": CHANNEL, "draft": draft})


class Announcer:
    """A listening connection in a thread, open while there are subscribers."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._wakes: list[Wake] = []
        self._lock = threading.Lock()
        self._listener: AnnouncementListener | None = None

    @property
    def hears(self) -> bool:
        """Whether the database supports notifications."""
        return self._db.dialect == "postgresql"

    def subscribe(self, wake: Wake) -> Callable[[], None]:
        """Call ``wake`` from another thread after every notification, and after a reconnect that may have missed one.

        Returns a function that unsubscribes. Never raises.
        """
        with self._lock:
            self._wakes.append(wake)
            if self.hears and self._listener is None:
                self._listener = AnnouncementListener(self._db, self._tell)
        return lambda: self._leave(wake)

    def is_heard(self, seconds: float) -> bool:
        """Return whether a notification sent now arrives within ``seconds``. Raises DatabaseUnreachable."""
        heard = threading.Event()
        leave = self.subscribe(heard.set)
        try:
            if not heard.wait(seconds):  # the thread is listening
                return False
            heard.clear()
            with self._db.session() as session:
                announce(session, "")
            return heard.wait(seconds)
        finally:
            leave()

    def _leave(self, wake: Wake) -> None:
        with self._lock:
            if wake in self._wakes:
                self._wakes.remove(wake)
            ended, self._listener = (None, self._listener) if self._wakes else (self._listener, None)
        if ended is not None:
            ended.close()

    def _tell(self) -> None:
        for wake in list(self._wakes):
            wake()


class AnnouncementListener:
    """A thread that listens on its own connection and reconnects when that breaks."""

    def __init__(self, db: Database, tell: Wake) -> None:
        self._db, self._tell = db, tell
        self._read_end, self._write_end = os.pipe()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="osd-listen", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening at once."""
        self._closing.set()
        os.write(self._write_end, b"x")
        self._thread.join()
        os.close(self._read_end)
        os.close(self._write_end)

    def _work(self) -> None:
        import psycopg

        pause = RETRY_SECONDS
        while not self._closing.is_set():
            try:
                with self._connect() as connection:
                    connection.execute(f"LISTEN {CHANNEL}")
                    pause = RETRY_SECONDS
                    self._tell()  # a notification may have been missed while disconnected
                    self._hear(connection)
            except (psycopg.Error, OSError) as error:
                reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
                log.warning("announcements are not heard: %s", reason, extra={"action": "listen_failed"})
                self._closing.wait(pause)
                pause = min(2 * pause, LONGEST_RETRY_SECONDS)

    def _connect(self) -> Any:
        import psycopg

        arguments, options = self._db.engine.dialect.create_connect_args(self._db.engine.url)
        return psycopg.connect(*arguments, **{**OPTIONS, **options, "autocommit": True})

    def _hear(self, connection: Any) -> None:
        """Wait for notifications until closed. Raises psycopg.Error when the connection breaks."""
        with selectors.DefaultSelector() as selector:
            selector.register(connection.fileno(), selectors.EVENT_READ)
            selector.register(self._read_end, selectors.EVENT_READ)
            while selector.select() and not self._closing.is_set():
                for _ in connection.notifies(timeout=0):
                    pass
                self._tell()
