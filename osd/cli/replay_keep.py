"""`osd replay forget`, `retain`, `compact`, `verify`, `tenant`, `log`: what keeps stored samples in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from osd.cli.audit import print_trail
from osd.cli.context import CommandContext
from osd.cli.options import Confirmation, DryRun, Name, Newest
from osd.cli.out import TEXT, Output, columns, count, counted, note, print_json, print_table, size
from osd.cli.replay import app

if TYPE_CHECKING:
    from storage.forget import Forgotten
    from storage.store import Store

DAMAGED = 5
"""Exit status of `osd replay verify` when it finds a fault, that of StoreError."""
TENANTS = columns({"share": TEXT}, name="tenant", learn="kept", share="shared")


@dataclass(frozen=True)
class ForgetFilter:
    """The requests that are forgotten."""

    request: Annotated[list[str], typer.Option(metavar="ID")] | None = None
    """This request; may be repeated."""
    tenant: Name | None = None
    """Every request of this tenant."""


@app.command()
def forget(here: CommandContext, wanted: ForgetFilter, consent: Confirmation, output: Output) -> None:
    """Forget requests or a tenant, and name every draft version that was trained on them.

    Samples and lines of the log are deleted; sums by minute, which name no request, stay. Weights do not forget: of the
    versions named, `osd drafts rollback` takes back one that serves. Every stored table of n-grams is deleted; servers
    make theirs anew from the requests that are kept, running ones within seconds. What still waits on a server's disk
    is refused when it comes. Examples of topics carry no request's id: `osd router forget` takes those.
    """
    requests, tenant = wanted.request or [], wanted.tenant
    if bool(requests) == (tenant is not None):
        raise typer.BadParameter("say what: --request, which may be repeated, or --tenant alone")
    meant = f"tenant {tenant}" if tenant is not None else counted(len(requests), "request")
    consent.ask(f"Forget {meant}? This cannot be undone.")
    with here.store() as store:
        forgotten = store.forgetter.forget(requests, tenant=tenant)
        serving = serves(store, forgotten.learned.versions)
    if output.as_json:
        counts = {"outcomes": forgotten.outcomes, "tables": forgotten.tables}
        print_json({**asdict(forgotten.purged), **counts, **asdict(forgotten.learned), "serving": sorted(serving)})
    else:
        tell(forgotten, serving)


def serves(store: Store, versions: Sequence[str]) -> set[str]:
    """Return those of the versions that are current, or that a server drafts with."""
    found = {store.versions.get(version).draft for version in versions}
    drafting = [version for draft in found for version in store.versions.serving(draft).values()]
    return {*drafting, *(store.versions.current(draft).id for draft in found)} & set(versions)


def tell(forgotten: Forgotten, serving: set[str]) -> None:
    """Print what was forgotten as lines on stderr; the versions are the result itself, and which of them serve."""
    purged, learned = forgotten.purged, forgotten.learned
    note(f"Forgot {counted(purged.requests, 'request')} ({size(purged.bytes)}) and {forgotten.outcomes} outcomes.")
    print_table(
        [{"version": version, "serves": "● serves" if version in serving else ""} for version in learned.versions],
        columns(version="trained on them", serves="now"),
        empty="No draft version was trained on them.",
    )  # fmt: skip
    if forgotten.tables:
        versions = counted(forgotten.tables, "version")
        note(f"Deleted {versions} of n-gram tables; servers make them anew from the requests that are kept.")
    for topic in learned.topics:
        note(f"Examples of the topic {topic} were taken from them: `osd router forget {topic}` deletes their text.")
    for number in learned.open_splits:
        note(f"Declined the proposal {number}, whose draft had learned from them, and deleted that draft.")
    if learned.under_way:
        note(f"Training on them now, so that what comes of it learned from them too: {', '.join(learned.under_way)}.")


@app.command()
def retain(here: CommandContext, output: Output, dry: DryRun = False) -> None:
    """Delete what `[retention]` says must go, as the trainer does between its turns.

    What a run under way has claimed stays until it has ended.
    """
    if here.settings.retention.keeps_all:
        note("No limit is set in [retention]: everything stays.")
    with here.store() as store:
        done = store.keeper.retain(here.settings.retention, dry=dry)
        if not dry:
            store.trail.note("replay retain", None, {**asdict(done.purged), "by_rule": done.by_rule})
    why = ", ".join(f"{number} by {rule}" for rule, number in sorted(done.by_rule.items())) or "nothing to end"
    words = f"Would end: {why}." if dry else f"Ended {count(done.purged.requests)} requests ({why})."
    output.words({**asdict(done.purged), "by_rule": done.by_rule, "dry_run": dry}, words)


@app.command()
def compact(here: CommandContext, output: Output) -> None:
    """Merge small segments, as the trainer does between its turns."""
    with here.store() as store:
        done = store.keeper.compact(here.settings.retention.compact_requests)
        store.trail.note("replay compact", None, asdict(done))
    merged = f"{counted(done.before, 'segment')} became {done.after}."
    output.words(asdict(done), merged if done.before else "There are no small segments to put together.")


@app.command()
def verify(here: CommandContext, output: Output) -> None:
    """Read every segment and compare it with its index; status 5 when something is wrong."""
    with here.store() as store:
        found = store.keeper.verify()
    if output.as_json:
        print_json(asdict(found))
    else:
        for fault in found.faults:
            note(f"osd: {fault.path}: {fault.reason}. `osd replay purge --segment {fault.segment}` drops it.")
        sound = f"{counted(found.segments, 'segment')}, {count(found.requests)} requests"
        note(f"{sound}: {counted(len(found.faults), 'fault') if found.faults else 'all sound'}.")
    if found.faults:
        raise typer.Exit(DAMAGED)


@dataclass(frozen=True)
class TenantOptions:
    """A tenant, and what it permits."""

    name: Annotated[str, typer.Argument(metavar="NAME")] | None = None
    """A tenant. Default: show all."""
    learn: Annotated[bool, typer.Option("--learn/--no-learn")] | None = None
    """May its requests be kept?"""
    share: Annotated[bool, typer.Option("--share/--no-share")] | None = None
    """May they train drafts that others use?"""


@app.command()
def tenant(here: CommandContext, wanted: TenantOptions, output: Output) -> None:
    """Set or show a tenant's permissions. `[privacy]` sets those of tenants that are not listed.

    A tenant that does not share trains one draft only: that of the route to which it alone is pinned.
    """
    name, learn, share = wanted.name, wanted.learn, wanted.share
    with here.store() as store:
        if name is not None and (learn is not None or share is not None):
            store.tenants.allow(name, learn=learn, share=share)
        rows = [asdict(one) for one in ([store.tenants.get(name)] if name is not None else store.tenants.list())]
    output.rows(rows, TENANTS, empty="Nothing was said of any tenant.")


@dataclass(frozen=True)
class LogFilter:
    """The lines that are shown."""

    subject: Annotated[str, typer.Argument(metavar="SUBJECT")] | None = None
    """About this request, tenant or file."""
    limit: Newest = 50


@app.command()
def log(here: CommandContext, wanted: LogFilter, output: Output) -> None:
    """Show the lines of `osd audit` about stored data: who, when, and with which result."""
    with here.store() as store:
        lines = store.trail.history(wanted.subject, wanted.limit, action="replay")
    print_trail(lines, as_json=output.as_json, empty="No admin has changed what is kept.")
