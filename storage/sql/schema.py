"""A database's schema revision, and migration to the newest. Alembic is imported only when there is work for it."""

from __future__ import annotations

import io
from importlib.resources import files
from typing import TYPE_CHECKING

from sqlalchemy import Connection, inspect, text

from storage.errors import SchemaOutdated, SchemaTooNew, SchemaTooOld, StoreError

if TYPE_CHECKING:
    from alembic.config import Config

HEAD = "0019"
"""The newest revision in ``migrations/versions``; a test compares the two."""

UPGRADED = ("0017", "0018")
"""Earlier revisions, which `osd db upgrade` brings to the newest."""

BEFORE_FIRST = {f"{number:04}" for number in range(1, 17)}
"""Revisions before the first one that this osd knows; commit 002f94b5 has their migrations."""

UPGRADE_LOCK = 0x6F7364  # "osd": any number will do, as long as every osd takes the same


def found(connection: Connection) -> str | None:
    """Return the database's revision; None when it has no schema of osd's."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()


def require_head(connection: Connection, url: str) -> None:
    """Raise SchemaOutdated, or SchemaTooNew, unless the database has the newest schema."""
    if (have := found(connection)) != HEAD:
        raise mismatch(url, have)


def mismatch(url: str, have: str | None) -> SchemaOutdated:
    """Return the error for a database whose revision is not HEAD."""
    if have is None or have in UPGRADED:
        return SchemaOutdated(url=url, found=have or "none", needed=HEAD)
    kind = SchemaTooOld if have in BEFORE_FIRST else SchemaTooNew
    return kind(url=url, found=have, needed=HEAD)


def migrate(connection: Connection, url: str) -> tuple[str | None, str | None]:
    """Migrate the schema up to HEAD within the connection's transaction; return (before, after).

    Raises SchemaTooNew for a schema that a newer osd made, SchemaTooOld for one from before the first migration.
    """
    from alembic import command
    from alembic.util import CommandError

    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": UPGRADE_LOCK})
    before = found(connection)
    config = alembic_config(connection)
    if before is not None and before not in revisions(config):
        raise mismatch(url, before)
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise StoreError(reason=f"The database {url} could not be upgraded ({error}).") from error
    return before, found(connection)


def alembic_config(connection: Connection) -> Config:
    """Return Alembic's configuration with the migrations wherever the package is installed; no alembic.ini."""
    from alembic.config import Config

    config = Config(stdout=io.StringIO())
    config.set_main_option("script_location", str(files("migrations")).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def revisions(config: Config) -> list[str]:
    """Return every known revision, newest first."""
    from alembic.script import ScriptDirectory

    return [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()]
