"""`osd db`: the metadata's schema."""

from __future__ import annotations

import typer

from osd.cli.context import surroundings
from osd.cli.options import JsonOption
from osd.cli.out import note, print_facts, print_json

app = typer.Typer(no_args_is_help=True, help="Look after the database's schema.")


@app.command()
def upgrade(ctx: typer.Context) -> None:
    """Bring the database's schema to what this osd needs.

    A SQLite file that is not there yet is created. Run it once before the first start on PostgreSQL, and after
    every update of osd that says so.
    """
    from storage.sql.database import upgrade as upgrade_schema

    before, after = upgrade_schema(surroundings(ctx).settings.storage.database_url())
    note(f"The schema is {after}." if before == after else f"The schema went from {before or 'nothing'} to {after}.")


@app.command()
def check(ctx: typer.Context, as_json: JsonOption = False) -> None:
    """Say whether the database answers and its schema fits.

    Changes nothing. Ends with status 5 when it does not answer or does not fit.
    """
    from storage.sql.database import check as check_database
    from storage.sql.schema import mismatch

    facts = check_database(surroundings(ctx).settings.storage.database_url())
    print_json(facts) if as_json else print_facts(facts)
    if not facts["current"]:
        raise mismatch(facts["url"], facts["found"])
