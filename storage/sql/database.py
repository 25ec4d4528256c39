"""The metadata database: its session scope and its schema.

SQLite (WAL) for one machine, PostgreSQL for several. A session commits at its end, rolls back on any
error, and turns the driver's errors into :class:`~storage.errors.StoreError`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, Concatenate, ParamSpec, TypeVar, TypeVarTuple

from sqlalchemy import Row, Select, text
from sqlalchemy.orm import Session
from sqlalchemy.sql.selectable import TypedReturnsRows

from storage import records
from storage.files.files import writing
from storage.sql import schema
from storage.sql.drivers import DRIVER_ERRORS, make_engine, parse_url, show_url, sqlite_file, translate

P = ParamSpec("P")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")
CHUNK = 5_000
"""Ids in one statement; SQLite takes at most 32,766 parameters."""


class Database:
    """An open database. Raises BadSetting for a URL that names none; connects at the first use."""

    def __init__(self, url: str) -> None:
        self._url = parse_url(url)
        self.engine = make_engine(self._url)
        self._reader = self.engine.execution_options(osd_read_only=True)

    @property
    def url(self) -> str:
        """The URL, passwords masked."""
        return show_url(self._url)

    @property
    def dialect(self) -> str:
        """``sqlite`` or ``postgresql``."""
        return self.engine.dialect.name

    @contextmanager
    def session(self, *, read_only: bool = False) -> Iterator[Session]:
        """Open one transaction. On SQLite it holds the write lock from its first statement on, unless ``read_only``.

        Do not open one inside another: on SQLite the inner would wait for the outer.
        """
        try:
            engine = self._reader if read_only else self.engine
            with Session(engine, expire_on_commit=False) as session, session.begin():
                yield session
        except DRIVER_ERRORS as error:
            raise translate(error, self._url) from error

    def read(self, ask: Callable[Concatenate[Session, P], T], *args: P.args, **options: P.kwargs) -> T:
        """Return what ``ask`` finds, in a transaction of its own that changes nothing."""
        with self.session(read_only=True) as session:
            return ask(session, *args, **options)

    def scalar(self, query: TypedReturnsRows[T]) -> T | None:
        """Return the first column of the query's first row; None where there is no row."""
        return self.read(Session.scalar, query)

    def scalars(self, query: TypedReturnsRows[T]) -> list[T]:
        """Return the first column of all rows of a query."""
        with self.session(read_only=True) as session:
            return list(session.scalars(query))

    def rows(self, query: Select[*Ts]) -> Sequence[Row[*Ts]]:
        """Return all rows of a query."""
        with self.session(read_only=True) as session:
            return session.execute(query).all()

    def check(self) -> dict[str, Any]:
        """Return url, dialect, server, found and needed schema, whether that is current, and milliseconds to answer.

        Changes nothing and creates no file. Raises DatabaseUnreachable.
        """
        facts = {"url": self.url, "dialect": self.dialect, "needed": schema.HEAD}
        file = sqlite_file(self._url)
        if file is not None and not file.exists():
            return facts | {"server": None, "found": None, "current": False, "milliseconds": 0.0}
        began = time.perf_counter()
        with self.session(read_only=True) as session:
            version = "sqlite_version()" if self.dialect == "sqlite" else "current_setting('server_version')"
            server = session.execute(text(f"SELECT {version}")).scalar_one()
            found = schema.found(session.connection())
        elapsed = 1000 * (time.perf_counter() - began)
        return facts | {"server": server, "found": found, "current": found == schema.HEAD, "milliseconds": elapsed}

    def create_if_fresh(self) -> None:
        """Create the schema in a new SQLite file. PostgreSQL is created by ``osd db upgrade`` only."""
        if (file := sqlite_file(self._url)) is None:
            return
        self._make_folder()
        if not file.exists() or file.stat().st_size == 0 or self._is_empty():
            self.upgrade()

    def upgrade(self) -> tuple[str | None, str | None]:
        """Migrate to the newest schema in one transaction; return the revisions before and after.

        Two processes may do so at once: the second finds the work done.
        """
        self._make_folder()
        try:
            with self.engine.begin() as connection:
                return schema.migrate(connection, self.url)
        except DRIVER_ERRORS as error:
            raise translate(error, self._url) from error

    def require_current_schema(self) -> None:
        """Raise SchemaOutdated when the schema is older or newer than this osd's."""
        with self.session(read_only=True) as session:
            schema.require_head(session.connection(), self.url)

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()

    def _is_empty(self) -> bool:
        with self.session(read_only=True) as session:
            return not session.execute(text("SELECT count(*) FROM sqlite_master")).scalar_one()

    def _make_folder(self) -> None:
        if (file := sqlite_file(self._url)) is None:
            return
        with writing(file.parent):
            file.parent.mkdir(parents=True, exist_ok=True)


class Repository:
    """A part of the store that keeps its rows in the database."""

    def __init__(self, db: Database) -> None:
        self._db = db


def upgrade(url: str) -> tuple[str | None, str | None]:
    """Migrate the database at ``url`` to the newest schema; return the revisions before and after."""
    database = Database(url)
    try:
        return database.upgrade()
    finally:
        database.close()


def check(url: str) -> dict[str, Any]:
    """Check the database at ``url``, see :meth:`Database.check`."""
    database = Database(url)
    try:
        return database.check()
    finally:
        database.close()


def ahead(session: Session) -> float:
    """Return by how many seconds the clock that all who use the database share is ahead of this machine's, as far as
    can be told: PostgreSQL's own, or, with a SQLite file, that of its machine."""
    if session.get_bind().dialect.name == "sqlite":
        return 0.0
    if "ahead" not in session.info:
        before = time.time()
        at = float(session.execute(text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one())
        session.info["ahead"] = round(min(max(0.0, at - time.time()), at - before), 3)
    return float(session.info["ahead"])


def clock(session: Session) -> float:
    """Return the present time in Unix seconds, by that clock."""
    return records.now() + ahead(session)


def has_ended(since: Any, until: Any, at: float) -> Any:
    """Return whether what was to last from ``since`` to ``until`` is over, in SQL for columns. What was stamped further
    ahead than it is long was stamped by a wrong clock."""
    return (until <= at) | (2 * since - until > at)


def changed_rows(result: object) -> int:
    """Return the number of rows that a statement changed or deleted."""
    return int(result.rowcount)  # type: ignore[attr-defined]


def chunks(items: Sequence[str], size: int = CHUNK) -> Iterator[list[str]]:
    """Yield the items in chunks of at most ``size``."""
    iterator = iter(items)
    while some := list(islice(iterator, size)):
        yield some
