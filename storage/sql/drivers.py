"""The two database drivers, SQLite and PostgreSQL: opening each, and translating its errors to osd's."""

from __future__ import annotations

import json
import math
import os
import sqlite3
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, DisconnectionError, SQLAlchemyError, TimeoutError

from storage.distribution import install_extra
from storage.errors import BadSetting, DatabaseUnreachable, StoreError, StoreWriteFailed

BUSY_SECONDS = 30
"""Seconds that a writer waits for another process's transaction on SQLite."""

CONNECT_SECONDS = 10
BROKEN_WIRE = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 20_000}
"""libpq options by which a connection that has gone silent is given up; seconds, but tcp_user_timeout is
milliseconds."""
_FULL = ("disk is full", "disk i/o error", "readonly database")
_GONE = ("08", "28", "3D", "57P")  # SQLSTATE classes: connection, authorisation, no such database, shutdown
_INHERITED: list[Any] = []
_SECRETS = ("password", "sslpassword", "passfile")


def parse_url(text: str) -> URL:
    """Parse a SQLite or PostgreSQL URL. Raises BadSetting, without repeating what may hold a password."""
    try:
        url = make_url("postgresql" + text.removeprefix("postgres") if text.startswith("postgres:") else text)
    except (ArgumentError, ValueError):
        raise _bad_url("it is not an SQLAlchemy URL such as sqlite:////var/lib/osd.db") from None
    kind = url.get_backend_name()
    if kind == "postgresql":
        return url.set(drivername="postgresql+psycopg")
    if kind != "sqlite":
        raise _bad_url(f"{kind!r} is not supported; give sqlite:///FILE or postgresql://USER@HOST/NAME")
    if url.database in (None, "", ":memory:"):
        raise _bad_url("threads and workers cannot share a database in memory; give sqlite:///FILE")
    return url.set(drivername="sqlite")


def _bad_url(reason: str) -> BadSetting:
    return BadSetting(source="settings", key="storage.url", reason=reason)


def show_url(url: URL) -> str:
    """Return the URL with its passwords masked."""
    masked = {name: "hidden" if name in _SECRETS else value for name, value in url.query.items()}
    return url.set(query=masked).render_as_string(hide_password=True)


def sqlite_file(url: URL) -> Path | None:
    """Return the path of a SQLite database; None for one in memory or another dialect."""
    return Path(url.database or "") if url.get_backend_name() == "sqlite" else None


def make_engine(url: URL) -> Engine:
    """Create an engine whose connections are set up for durability; connects to nothing yet."""
    options: dict[str, Any] = {"hide_parameters": True, "json_serializer": to_json}
    if url.get_backend_name() == "postgresql":
        options |= {"pool_pre_ping": True, "connect_args": {"connect_timeout": CONNECT_SECONDS, **BROKEN_WIRE}}
    else:
        options |= {"connect_args": {"timeout": BUSY_SECONDS}}
    try:
        engine = create_engine(url, **options)
    except ModuleNotFoundError:
        raise _bad_url(f"PostgreSQL needs psycopg, {install_extra('postgres')}") from None
    _forget_connections_of_a_parent(engine)
    if url.get_backend_name() == "sqlite":
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # transactions begin where _begin_sqlite says, not at the first INSERT
    _turn_to_wal(connection)
    for pragma in ("synchronous=FULL", "foreign_keys=ON", "secure_delete=ON"):
        connection.execute(f"PRAGMA {pragma}").close()


def _turn_to_wal(connection: Any) -> None:
    """Switch a new file to WAL, retrying while others hold it: SQLite ignores its busy timeout here."""
    end = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL").close()
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > end:
                raise
            time.sleep(0.01)
        else:
            return


def _begin_sqlite(connection: Connection) -> None:
    """Take the write lock at the start: two transactions that read first and write later would fail."""
    reading = connection.get_execution_options().get("osd_read_only", False)
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")


def _forget_connections_of_a_parent(engine: Engine) -> None:
    """Drop inherited connections in a forked child, which must not use its parent's."""

    def remember(_connection: Any, record: Any) -> None:
        record.info["pid"] = os.getpid()

    def compare(_connection: Any, record: Any, fairy: Any) -> None:
        if record.info["pid"] != os.getpid():
            _INHERITED.append(fairy.dbapi_connection)  # closing it would send on the parent's connection
            record.dbapi_connection = fairy.dbapi_connection = None
            raise DisconnectionError("the connection belongs to the parent process")

    event.listen(engine, "connect", remember)
    event.listen(engine, "checkout", compare)


def translate(error: Exception, url: URL) -> StoreError:
    """Translate the driver's error to one of osd's; keeps its first line alone, and never the parameters."""
    cause = getattr(error, "orig", None) or error
    reason = (str(cause).strip().splitlines() or [type(cause).__name__])[0]
    shown = show_url(url)
    if isinstance(error, TimeoutError):
        return DatabaseUnreachable(url=shown, reason="no connection became free in time")
    if not isinstance(error, DBAPIError):
        return StoreError(reason=f"The database {shown} could not be used ({reason}).")
    if url.get_backend_name() == "sqlite":
        return _translate_sqlite(reason, shown, str(url.database))
    return _translate_postgres(error, reason, shown)


def _translate_sqlite(reason: str, shown: str, path: str) -> StoreError:
    said = reason.lower()
    if "locked" in said:
        return StoreError(reason=f"The database {shown} is busy: somebody has written for {BUSY_SECONDS} seconds.")
    if any(word in said for word in _FULL):
        return StoreWriteFailed(path=path, reason=reason)
    if "unable to open" in said or "not a database" in said:
        return DatabaseUnreachable(url=shown, reason=reason)
    return StoreError(reason=f"The database {shown} refused ({reason}).")


def _translate_postgres(error: DBAPIError, reason: str, shown: str) -> StoreError:
    state = getattr(error.orig, "sqlstate", None) or ""
    broken = not state and type(error).__name__ in ("OperationalError", "InterfaceError")
    if error.connection_invalidated or broken or state.startswith(_GONE):
        return DatabaseUnreachable(url=shown, reason=reason)
    if state.startswith("53"):  # insufficient resources: disk full, out of memory, too many connections
        return StoreWriteFailed(path=shown, reason=reason)
    return StoreError(reason=f"The database {shown} refused ({reason}).")


def insert_for(dialect: str) -> Any:
    """Return the dialect's INSERT construct, which supports ON CONFLICT."""
    return import_module(f"sqlalchemy.dialects.{dialect}").insert  # the other one would take a tenth of a second


DRIVER_ERRORS = (SQLAlchemyError, OverflowError, UnicodeError)
"""Errors that a statement may raise; the last two come from values that the driver cannot encode."""


def to_json(value: Any) -> str:
    """Serialise to JSON; numpy scalars become numbers, paths strings, and NaN or infinity null."""
    return json.dumps(plain(value), ensure_ascii=False, allow_nan=False)


def plain(value: Any) -> Any:
    """Convert a value to JSON's own types. Raises TypeError for a type that has no counterpart."""
    if hasattr(value, "item") and not isinstance(value, (str, bytes)):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "items"):
        return {str(key): plain(each) for key, each in value.items()}
    return [plain(each) for each in value]
