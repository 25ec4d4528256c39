"""`osd keys`: API keys of the server."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from osd.cli.context import surroundings
from osd.cli.options import JsonOption, YesOption, confirm, span
from osd.cli.out import Column, note, print_json, print_rows, say, when
from storage.access.keys import DEFAULT_SCOPES, SCOPES
from storage.records import DEFAULT_TENANT

app = typer.Typer(no_args_is_help=True, help="Make, list and revoke API keys of `osd serve`.")
COLUMNS = (
    Column("id", "key", whole=True),
    Column("shown", "begins"),
    Column("name", "name"),
    Column("tenant", "tenant"),
    Column("scopes", "may", " ".join),
    Column("requests_per_minute", "requests/min", right=True),
    Column("tokens_per_minute", "tokens/min", right=True),
    Column("created_at", "made", when, whole=True),
    Column("expires_at", "expires", when, whole=True),
    Column("revoked_at", "revoked", when, whole=True),
)


@app.command()
def create(
    ctx: typer.Context,
    tenant: Annotated[
        str, typer.Option(help="Whose requests come with it, in what is kept.", metavar="NAME")
    ] = DEFAULT_TENANT,
    name: Annotated[str, typer.Option(help="What it is for.", metavar="TEXT")] = "",
    scope: Annotated[
        list[str] | None,
        typer.Option(help=f"What it may do: {', '.join(SCOPES)}; may be given again. Default: infer.", metavar="SCOPE"),
    ] = None,
    requests: Annotated[int | None, typer.Option(help="Requests a minute.", metavar="N", min=1)] = None,
    tokens: Annotated[int | None, typer.Option(help="Tokens a minute, prompts included.", metavar="N", min=1)] = None,
    expires: Annotated[
        float | None, typer.Option(help="Ends after so long: 12h, 30d.", parser=span, metavar="SPAN")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a key and print it: this once, for only a hash of it is kept.

    A server that runs takes it within `server.keys_poll_seconds`.

    Example: `osd keys create --tenant acme --requests 60 --expires 30d`
    """
    with surroundings(ctx).store() as store:
        secret, key = store.keys.create(
            tenant, name=name, scopes=scope or DEFAULT_SCOPES, requests_per_minute=requests, tokens_per_minute=tokens,
            expires_at=None if expires is None else time.time() + expires,
        )  # fmt: skip
    if as_json:
        print_json({"key": secret, **key.facts()})
    else:
        say(secret)
        note(f"{key.id} for the tenant {key.tenant}. It cannot be shown again.")


@app.command("list")
def list_keys(ctx: typer.Context, as_json: JsonOption = False) -> None:
    """List every key ever created, oldest first."""
    with surroundings(ctx).store() as store:
        rows = [key.facts() for key in store.keys.list()]
    print_rows(rows, COLUMNS, as_json=as_json, empty="There are no keys: `osd serve` listens on this machine only.")


@app.command()
def revoke(
    ctx: typer.Context,
    key: Annotated[str, typer.Argument(help="A key's id, as `osd keys list` shows it.", metavar="KEY")],
    yes: YesOption = False,
) -> None:
    """Revoke a key. Streams that it opened end with an error, too.

    It cannot be undone; create another one.
    """
    with surroundings(ctx).store() as store:
        confirm(f"Revoke {key}?", yes)
        store.keys.revoke(key)
    note(f"{key} opens nothing any more.")
