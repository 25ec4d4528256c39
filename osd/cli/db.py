"""`osd db`: the metadata's schema, and backups of the whole store."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from osd.cli.command import CommandGroup
from osd.cli.context import CommandContext
from osd.cli.out import Output, count, counted, note, say, size

if TYPE_CHECKING:
    from storage.backup import Backup

app = CommandGroup("Look after the database's schema; back the whole store up, and restore it.")


@app.command()
def upgrade(here: CommandContext) -> None:
    """Bring the database's schema to what this osd needs.

    A SQLite file that is not there yet is created. Run it once before the first start on PostgreSQL, and after
    every update of osd that says so.
    """
    from storage.sql.database import upgrade as upgrade_schema
    from storage.store import lay_out

    before, after = upgrade_schema(here.settings.storage.database_url())
    if before != after:
        with lay_out(here.settings) as store:  # no folder is made for a line
            store.trail.note("db upgrade", None, {"schema": after}, {"schema": before})
    note(f"The schema is {after}." if before == after else f"The schema went from {before or 'nothing'} to {after}.")


@app.command()
def backup(
    here: CommandContext,
    destination: Annotated[Path, typer.Argument(help="A folder that is not there yet.", metavar="FOLDER")],
    output: Output,
) -> None:
    """Copy the whole store to a folder, while it is used: metadata, samples and weights, and check the copy.

    SQLite is copied by its own backup call, PostgreSQL by `pg_dump`. It holds the requests' tokens and the hashes of
    API keys, so treat it as you treat the prompts. What waits in a server's memory or `spill/` is not in it.
    """
    from storage.backup import back_up

    with here.store() as store:
        done = back_up(store, here.settings.storage.database_url(), destination, note)
        store.trail.note("db backup", destination.name, asdict(done))
    tell_backup(done, output)
    if not output.as_json:
        say(str(destination))


@app.command()
def restore(
    here: CommandContext,
    source: Annotated[Path, typer.Argument(help="A folder of `osd db backup`.", metavar="FOLDER")],
    output: Output,
) -> None:
    """Restore a backup into the store that the settings name, which must be empty.

    Every file is checked before any is written; files come first and the metadata last, so that a store that has
    metadata is whole. The kind of database must be the backup's; samples and weights may go to another kind of place.
    """
    from storage.backup import restore as bring_back

    done = bring_back(here.settings, source, note)
    tell_backup(done, output)


def tell_backup(done: Backup, output: Output) -> None:
    """Print what a backup holds."""
    output.words(
        asdict(done),
        f"{counted(done.segments, 'segment')} with {count(done.requests)} requests, weights of "
        f"{counted(done.versions, 'version')}, schema {done.schema}, {size(done.bytes)}; all sound.",
    )


@app.command()
def check(here: CommandContext, output: Output) -> None:
    """Say whether the database answers and its schema fits.

    Changes nothing. Ends with status 5 when it does not answer or does not fit.
    """
    from storage.sql.database import check as check_database
    from storage.sql.schema import mismatch

    facts = check_database(here.settings.storage.database_url())
    output.facts(facts)
    if not facts["current"]:
        raise mismatch(facts["url"], facts["found"])
