"""`osd drafts promote`, `rollback`, `pin`, `freeze`, `resume`, `alias`: decisions that hold.

`delete` and `retain` let weights go."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from osd.cli.context import surroundings
from osd.cli.drafts import VersionArgument, app
from osd.cli.options import JsonOption, YesOption, confirm
from osd.cli.out import counted, note, print_json, size, state
from storage.errors import BadInput
from storage.records import DEFAULT_DRAFT, DraftVersion

DraftArgument = Annotated[str, typer.Argument(help="A draft.", metavar="DRAFT")]


@app.command()
def promote(ctx: typer.Context, version: VersionArgument, yes: YesOption = False) -> None:
    """Make a version the current one, whatever the gate decided, and freeze the draft there.

    Its files are checked first. Servers swap it in between two steps. Nothing replaces it until `osd drafts resume`.
    """
    with surroundings(ctx).store() as store:
        chosen = store.versions.get(version)
        confirm(f"Serve {chosen.draft} with {chosen.id}, which is {state(chosen.state)}?", yes)
        tell_frozen(store.decisions.promote(chosen.id))


@app.command()
def rollback(
    ctx: typer.Context,
    draft: Annotated[str, typer.Argument(help="The draft to take back.", metavar="DRAFT")] = DEFAULT_DRAFT,
    to: Annotated[
        str | None, typer.Option(help="Return to this version, by id or name. Default: the parent.", metavar="VERSION")
    ] = None,
    reason: Annotated[
        str, typer.Option(help="Kept with the version that is taken back.")
    ] = "asked for on the command line",
    yes: YesOption = False,
) -> None:
    """Take back a draft's current version, return to its parent, and freeze the draft there.

    Servers swap the older weights in between two steps. Nothing is trained from what was taken back, and nothing
    replaces what serves until `osd drafts resume`. Nothing is deleted; `osd drafts promote` undoes it.
    """
    with surroundings(ctx).store() as store:
        current = store.versions.current(draft)
        to = store.versions.get(to).id if to else None
        if back := to or current.parent:  # else rolling back says why it cannot
            confirm(f"Take back {current.id} and return to {back}?", yes)
        tell_frozen(store.decisions.rollback(draft, reason, to=to))


@app.command()
def pin(
    ctx: typer.Context,
    version: VersionArgument,
    reason: Annotated[str, typer.Option(help="Shown wherever the pin is.")] = "pinned by hand",
) -> None:
    """Serve a draft with one version, and with no other until `osd drafts resume`.

    It becomes the current one if it is not. The draft is not trained meanwhile; requests are kept and wait.
    """
    with surroundings(ctx).store() as store:
        pinned = store.decisions.pin(version, reason)
    note(f"{pinned.draft} is pinned to {pinned.id}; `osd drafts resume {pinned.draft}` lets it learn again.")


@app.command()
def freeze(
    ctx: typer.Context,
    draft: DraftArgument = DEFAULT_DRAFT,
    reason: Annotated[str, typer.Option(help="Shown wherever the freeze is.")] = "frozen by hand",
) -> None:
    """Leave a draft at the version that serves, until `osd drafts resume`.

    A run under way ends at its next heartbeat and gives its requests back.
    """
    with surroundings(ctx).store() as store:
        hold = store.decisions.freeze(draft, reason)
    note(f"{draft} is frozen at {hold.version}; `osd drafts resume {draft}` lets it learn again.")


@app.command()
def resume(ctx: typer.Context, draft: DraftArgument = DEFAULT_DRAFT) -> None:
    """Let a pinned or frozen draft learn again, from the version that serves."""
    with surroundings(ctx).store() as store:
        hold = store.decisions.resume(draft)
    note(f"{draft} learns again, from {hold.version}." if hold else f"{draft} was neither pinned nor frozen.")


@app.command()
def alias(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="A name of your own; DRAFT:NAME to remove one.", metavar="NAME")],
    version: Annotated[
        str | None, typer.Argument(help="The version that is to be called so.", metavar="VERSION")
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Take the name away.")] = False,
) -> None:
    """Give a version a name, which stands for it wherever a version is asked for, as DRAFT:NAME.

    Retention keeps what has a name. `current` and `previous` are names that every draft has: what serves, and what
    served before.

    Examples: `osd drafts alias good current`, `osd drafts rollback --to good`
    """
    if (version is None) is not remove:
        raise BadInput(reason="Say which VERSION is to be called so, or --remove.")
    draft, _, own = name.rpartition(":")
    with surroundings(ctx).store() as store:
        if version is None:
            had = store.decisions.unname(draft or DEFAULT_DRAFT, own)
            note(f"{had} is no longer called {own}.")
            return
        named = store.decisions.name(version, own)
    note(f"{named.id} is {named.draft}:{own}.")


@app.command()
def delete(ctx: typer.Context, version: VersionArgument, yes: YesOption = False) -> None:
    """Delete a version's weights. What is known of it stays: where it came from, what the gate measured, who had it.

    Number 0, what serves and what did before it, what is pinned or has a name, and the newest version are not deleted.
    """
    with surroundings(ctx).store() as store:
        chosen = store.versions.get(version)
        confirm(f"Delete the weights of {chosen.id}, which is {state(chosen.state)}? This cannot be undone.", yes)
        store.version_keeper.delete(chosen)
    note(f"The weights of {chosen.id} are deleted ({size(chosen.bytes or 0)}).")


@app.command()
def retain(
    ctx: typer.Context,
    dry: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Delete the weights that `[retention.versions]` ends, as the trainer does after its runs."""
    here = surroundings(ctx)
    with here.store() as store:
        done = store.version_keeper.retain(here.settings.retention.versions, dry=dry)
        if done.versions and not dry:
            store.trail.note("drafts retain", None, asdict(done))
    if as_json:
        print_json({**asdict(done), "dry_run": dry})
        return
    why = ", ".join(f"{number} by {rule}" for rule, number in sorted(done.by_rule.items())) or "nothing to delete"
    note(f"{'Would delete' if dry else 'Deleted'} the weights of {counted(len(done.versions), 'version')} ({why}).")


def tell_frozen(version: DraftVersion) -> None:
    """Say what is current now, and that it stays so."""
    note(
        f"{version.id} is now the current version of {version.draft}, which is frozen there: nothing replaces it until "
        f"`osd drafts resume {version.draft}`."
    )
