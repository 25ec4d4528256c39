"""`osd drafts promote`, `rollback`, `pin`, `freeze`, `resume`, `alias`: decisions that hold.

`delete` and `retain` let weights go."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from osd.cli.context import CommandContext
from osd.cli.drafts import VersionArgument, app
from osd.cli.options import Confirmation, DryRun
from osd.cli.out import Output, counted, note, size, state
from storage.errors import BadInput
from storage.records import DEFAULT_DRAFT, DraftVersion

DraftArgument = Annotated[str, typer.Argument(help="A draft.", metavar="DRAFT")]


@app.command()
def promote(here: CommandContext, version: VersionArgument, consent: Confirmation) -> None:
    """Make a version the current one, whatever the gate decided, and freeze the draft there.

    Its files are checked first. Servers swap it in between two steps. Nothing replaces it until `osd drafts resume`.
    """
    with here.store() as store:
        chosen = store.versions.get(version)
        consent.ask(f"Serve {chosen.draft} with {chosen.id}, which is {state(chosen.state)}?")
        tell_frozen(store.decisions.promote(chosen.id))


@dataclass(frozen=True)
class RollbackOptions:
    """What is taken back, and why."""

    draft: Annotated[str, typer.Argument(metavar="DRAFT")] = DEFAULT_DRAFT
    """The draft to take back."""
    to: Annotated[str, typer.Option(metavar="VERSION")] | None = None
    """Return to this version, by id or name. Default: the parent."""
    reason: str = "asked for on the command line"
    """Kept with the version that is taken back."""


@app.command()
def rollback(here: CommandContext, wanted: RollbackOptions, consent: Confirmation) -> None:
    """Take back a draft's current version, return to its parent, and freeze the draft there.

    Servers swap the older weights in between two steps. Nothing is trained from what was taken back, and nothing
    replaces what serves until `osd drafts resume`. Nothing is deleted; `osd drafts promote` undoes it.
    """
    with here.store() as store:
        current = store.versions.current(wanted.draft)
        to = store.versions.get(wanted.to).id if wanted.to else None
        if back := to or current.parent:  # else rolling back says why it cannot
            consent.ask(f"Take back {current.id} and return to {back}?")
        tell_frozen(store.decisions.rollback(wanted.draft, wanted.reason, to=to))


@app.command()
def pin(
    here: CommandContext,
    version: VersionArgument,
    reason: Annotated[str, typer.Option(help="Shown wherever the pin is.")] = "pinned by hand",
) -> None:
    """Serve a draft with one version, and with no other until `osd drafts resume`.

    It becomes the current one if it is not. The draft is not trained meanwhile; requests are kept and wait.
    """
    with here.store() as store:
        pinned = store.decisions.pin(version, reason)
    note(f"{pinned.draft} is pinned to {pinned.id}; `osd drafts resume {pinned.draft}` lets it learn again.")


@app.command()
def freeze(
    here: CommandContext,
    draft: DraftArgument = DEFAULT_DRAFT,
    reason: Annotated[str, typer.Option(help="Shown wherever the freeze is.")] = "frozen by hand",
) -> None:
    """Leave a draft at the version that serves, until `osd drafts resume`.

    A run under way ends at its next heartbeat and gives its requests back.
    """
    with here.store() as store:
        hold = store.decisions.freeze(draft, reason)
    note(f"{draft} is frozen at {hold.version}; `osd drafts resume {draft}` lets it learn again.")


@app.command()
def resume(here: CommandContext, draft: DraftArgument = DEFAULT_DRAFT) -> None:
    """Let a pinned or frozen draft learn again, from the version that serves."""
    with here.store() as store:
        hold = store.decisions.resume(draft)
    note(f"{draft} learns again, from {hold.version}." if hold else f"{draft} was neither pinned nor frozen.")


@app.command()
def alias(
    here: CommandContext,
    name: Annotated[str, typer.Argument(help="A name of your own; DRAFT:NAME to remove one.", metavar="NAME")],
    version: Annotated[str | None, typer.Argument(metavar="VERSION"), "The version that is to be called so."] = None,
    remove: Annotated[bool, "Take the name away."] = False,
) -> None:
    """Give a version a name, which stands for it wherever a version is asked for, as DRAFT:NAME.

    Retention keeps what has a name. `current` and `previous` are names that every draft has: what serves, and what
    served before.

    Examples: `osd drafts alias good current`, `osd drafts rollback --to good`
    """
    if (version is None) is not remove:
        raise BadInput(reason="Say which VERSION is to be called so, or --remove.")
    draft, _, own = name.rpartition(":")
    with here.store() as store:
        if version is None:
            had = store.decisions.unname(draft or DEFAULT_DRAFT, own)
            note(f"{had} is no longer called {own}.")
            return
        named = store.decisions.name(version, own)
    note(f"{named.id} is {named.draft}:{own}.")


@app.command()
def delete(here: CommandContext, version: VersionArgument, consent: Confirmation) -> None:
    """Delete a version's weights. What is known of it stays: where it came from, what the gate measured, who had it.

    Number 0, what serves and what did before it, what is pinned or has a name, and the newest versions are not deleted.
    """
    with here.store() as store:
        chosen = store.versions.get(version)
        consent.ask(f"Delete the weights of {chosen.id}, which is {state(chosen.state)}? This cannot be undone.")
        store.version_keeper.delete(chosen)
    note(f"The weights of {chosen.id} are deleted ({size(chosen.bytes or 0)}).")


@app.command()
def retain(here: CommandContext, output: Output, dry: DryRun = False) -> None:
    """Delete the weights that `[retention.versions]` ends, as the trainer does after its runs."""
    with here.store() as store:
        done = store.version_keeper.retain(here.settings.retention.versions, dry=dry)
        if done.versions and not dry:
            store.trail.note("drafts retain", None, asdict(done))
    why = ", ".join(f"{number} by {rule}" for rule, number in sorted(done.by_rule.items())) or "nothing to delete"
    words = f"{'Would delete' if dry else 'Deleted'} the weights of {counted(len(done.versions), 'version')} ({why})."
    output.words({**asdict(done), "dry_run": dry}, words)


def tell_frozen(version: DraftVersion) -> None:
    """Say what is current now, and that it stays so."""
    note(
        f"{version.id} is now the current version of {version.draft}, which is frozen there: nothing replaces it until "
        f"`osd drafts resume {version.draft}`."
    )
