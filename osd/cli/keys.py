"""`osd keys`: API keys of the server."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Annotated

import typer

from osd.cli.command import CommandGroup
from osd.cli.context import CommandContext
from osd.cli.options import Confirmation, Count, Name, span
from osd.cli.out import Output, columns, note, print_json, say
from storage.access.keys import DEFAULT_SCOPES, SCOPES
from storage.records import DEFAULT_TENANT

app = CommandGroup("Make, list and revoke API keys of `osd serve`.")
COLUMNS = columns(
    id="key", shown="begins", name="name", tenant="tenant", scopes="may", requests_per_minute="requests/min",
    tokens_per_minute="tokens/min", created_at="made", expires_at="expires", revoked_at="revoked",
)  # fmt: skip


@dataclass(frozen=True)
class NewKey:
    """What the key is for, and what it may do."""

    tenant: Name = DEFAULT_TENANT
    """Whose requests come with it, in what is kept."""
    name: Annotated[str, typer.Option(metavar="TEXT")] = ""
    """What it is for."""
    scope: Annotated[
        list[str] | None,
        typer.Option(metavar="SCOPE"),
        f"What it may do: {', '.join(SCOPES)}; may be given again. Default: infer.",
    ] = None
    requests: Count | None = None
    """Requests a minute."""
    tokens: Count | None = None
    """Tokens a minute, prompts included."""
    expires: Annotated[float, typer.Option(parser=span, metavar="SPAN")] | None = None
    """Ends after so long: 12h, 30d."""


@app.command()
def create(here: CommandContext, wanted: NewKey, output: Output) -> None:
    """Make a key and print it: this once, for only a hash of it is kept.

    A server that runs takes it within `server.keys_poll_seconds`.

    Example: `osd keys create --tenant acme --requests 60 --expires 30d`
    """
    with here.store() as store:
        secret, key = store.keys.create(
            wanted.tenant, name=wanted.name, scopes=wanted.scope or DEFAULT_SCOPES,
            requests_per_minute=wanted.requests, tokens_per_minute=wanted.tokens,
            expires_at=None if wanted.expires is None else time.time() + wanted.expires,
        )  # fmt: skip
    if output.as_json:
        print_json({"key": secret, **key.facts()})
    else:
        say(secret)
        note(f"{key.id} for the tenant {key.tenant}. It cannot be shown again.")


@app.command("list")
def list_keys(here: CommandContext, output: Output) -> None:
    """List every key ever created, oldest first."""
    with here.store() as store:
        rows = [key.facts() for key in store.keys.list()]
    output.rows(rows, COLUMNS, empty="There are no keys: `osd serve` listens on this machine only.")


@app.command()
def revoke(
    here: CommandContext,
    key: Annotated[str, typer.Argument(help="A key's id, as `osd keys list` shows it.", metavar="KEY")],
    consent: Confirmation,
) -> None:
    """Revoke a key. Streams that it opened end with an error, too.

    It cannot be undone; create another one.
    """
    with here.store() as store:
        consent.ask(f"Revoke {key}?")
        store.keys.revoke(key)
    note(f"{key} opens nothing any more.")
