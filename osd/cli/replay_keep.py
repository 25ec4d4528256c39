"""`osd replay forget`, `retain`, `compact`, `verify`, `import`, `tenant`, `log`: administration of stored samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from osd.cli.audit import print_trail
from osd.cli.context import surroundings
from osd.cli.imports import import_conversations
from osd.cli.options import JsonOption, YesOption, confirm
from osd.cli.out import Column, count, counted, note, print_json, print_rows, print_table, size
from osd.cli.replay import app
from storage.errors import ModelNotLoaded
from storage.forget import Forgotten
from storage.records import DEFAULT_ROUTE
from storage.replay.imports import import_file
from storage.replay.verify import verify_samples
from storage.versions.targets import SHORT

if TYPE_CHECKING:
    from storage.store import Store

DAMAGED = 5
"""Exit status of `osd replay verify` when it finds a fault, that of StoreError."""
TENANTS = (Column("name", "tenant"), Column("learn", "kept"), Column("share", "shared"))


@app.command()
def forget(
    ctx: typer.Context,
    request: Annotated[list[str] | None, typer.Option(help="This request; may be repeated.", metavar="ID")] = None,
    tenant: Annotated[str | None, typer.Option(help="Every request of this tenant.", metavar="NAME")] = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Forget requests or a tenant, and name every draft version that was trained on them.

    Samples and lines of the log are deleted; sums by minute, which name no request, stay. Weights do not forget: of the
    versions named, `osd drafts rollback` takes back one that serves. Every stored table of n-grams is deleted; servers
    make theirs anew from the requests that are kept, running ones within seconds. What still waits on a server's disk
    is refused when it comes. Examples of topics carry no request's id: `osd router forget` takes those.
    """
    if bool(request) == (tenant is not None):
        raise typer.BadParameter("say what: --request, which may be repeated, or --tenant alone")
    meant = f"tenant {tenant}" if tenant is not None else counted(len(request or []), "request")
    confirm(f"Forget {meant}? This cannot be undone.", yes)
    with surroundings(ctx).store() as store:
        forgotten = store.forgetter.forget(request or [], tenant=tenant)
        serving = serves(store, forgotten.learned.versions)
    if as_json:
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
        (Column("version", "trained on them", whole=True), Column("serves", "now", str)),
        empty="No draft version was trained on them.",
    )  # fmt: skip
    if forgotten.tables:
        versions = counted(forgotten.tables, "version")
        note(f"Deleted {versions} of n-gram tables; servers make them anew from the requests that are kept.")
    for topic in learned.topics:
        note(f"Examples of the topic {topic} were taken from them: `osd router forget {topic}` deletes their text.")
    if learned.under_way:
        note(f"Training on them now, so that what comes of it learned from them too: {', '.join(learned.under_way)}.")


@app.command()
def retain(
    ctx: typer.Context,
    dry: Annotated[bool, typer.Option("--dry-run", help="Only count what would go.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Delete what `[retention]` says must go, as the worker does between its turns.

    What a run under way has claimed stays until it has ended.
    """
    here = surroundings(ctx)
    if here.settings.retention.keeps_all:
        note("No limit is set in [retention]: everything stays.")
    with here.store() as store:
        done = store.keeper.retain(here.settings.retention, dry=dry)
        if not dry:
            store.trail.note("replay retain", None, {**asdict(done.purged), "by_rule": done.by_rule})
    if as_json:
        print_json({**asdict(done.purged), "by_rule": done.by_rule, "dry_run": dry})
        return
    why = ", ".join(f"{number} by {rule}" for rule, number in sorted(done.by_rule.items())) or "nothing to end"
    note(f"Would end: {why}." if dry else f"Ended {count(done.purged.requests)} requests ({why}).")


@app.command()
def compact(ctx: typer.Context, as_json: JsonOption = False) -> None:
    """Merge small segments, as the worker does between its turns."""
    here = surroundings(ctx)
    with here.store() as store:
        done = store.keeper.compact(here.settings.retention.compact_requests)
        store.trail.note("replay compact", None, asdict(done))
    if as_json:
        print_json(asdict(done))
    elif done.before:
        note(f"{counted(done.before, 'segment')} became {done.after}.")
    else:
        note("There are no small segments to put together.")


@app.command()
def verify(ctx: typer.Context, as_json: JsonOption = False) -> None:
    """Read every segment and compare it with its index; status 5 when something is wrong."""
    with surroundings(ctx).store() as store:
        found = verify_samples(store.db, store.samples.place)
    if as_json:
        print_json(asdict(found))
    else:
        for fault in found.faults:
            note(f"osd: {fault.path}: {fault.reason}. `osd replay purge --segment {fault.segment}` drops it.")
        sound = f"{counted(found.segments, 'segment')}, {count(found.requests)} requests"
        note(f"{sound}: {counted(len(found.faults), 'fault') if found.faults else 'all sound'}.")
    if found.faults:
        raise typer.Exit(DAMAGED)


@app.command("import")
def import_(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(help="A file of `osd replay export`, or JSON lines.", metavar="FILE")],
    target: Annotated[
        str | None, typer.Option(help="The target that reads JSON lines. Default: serve.target.", metavar="MODEL")
    ] = None,
    draft: Annotated[
        str | None,
        typer.Option(
            help="The draft that is to learn, where the store has none yet. Default: serve.draft.", metavar="MODEL"
        ),
    ] = None,
    route: Annotated[str, typer.Option(help="The route that JSON lines belong to.", metavar="NAME")] = DEFAULT_ROUTE,
    as_json: JsonOption = False,
) -> None:
    """Keep the requests of an exported file, under their own ids, routes and tenants, or conversations of JSON lines.

    Requests that are kept already stay as they are. An exported file that is damaged anywhere is refused whole.

    A line of a `.jsonl` or `.jsonl.gz` file has a `prompt` and a `response`, or `messages` whose last one is the
    assistant's, or the `request` and `response` of OpenAI's API. The target reads each answer once, and what it would
    have said at every position is learned from: a draft can so begin with what you have, before it serves. Then
    `osd trainer` trains it.

    Example: `osd replay import answers.jsonl --target ./model --draft ./small`
    """
    here = surroundings(ctx)
    if file.suffix == ".jsonl" or file.name.endswith(".jsonl.gz"):
        done, left = import_conversations(here, file, target, draft, route)
    else:
        with here.store() as store:
            done, left = import_file(store.samples, file), 0
            store.trail.note("replay import", file.name, asdict(done))
    if as_json:
        print_json(asdict(done))
        return
    known = f"; {count(done.known)} were left as they are" if done.known else ""
    unusable = f"; {counted(left, 'line')} could not be used" if left else ""
    note(f"Kept {count(done.requests)} requests, {count(done.positions)} positions{known}{unusable}.")


@app.command()
def adopt(
    ctx: typer.Context,
    target: Annotated[
        str | None, typer.Option(help="The target, a folder or hub name. Default: serve.target.", metavar="MODEL")
    ] = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Say that what was kept before targets were named is about this target.

    Samples, drafts and tables of before are set aside until then. Servers take the drafts up when they look next. A
    draft whose line for this target has learned by now stays set aside.
    """
    from osd.models.model_digest import model_digest
    from osd.server.start import choose_pair

    here = surroundings(ctx)
    name = target or choose_pair(here.settings.serve, drafter=here.settings.drafters.kind).target
    if (digest := model_digest(name)) is None:
        raise ModelNotLoaded(path=name, reason="There is no such folder, nor such a model in the hub's cache.")
    confirm(f"Is what was kept before targets were named about {name} ({digest[:SHORT]})?", yes)
    with here.store() as store:
        done = store.targets.adopt(digest, name)
        store.trail.note("replay adopt", name, {"target": digest, **asdict(done)})
    if as_json:
        print_json({"target": digest, **asdict(done)})
        return
    note(f"{counted(done.requests, 'request')} and {counted(len(done.drafts), 'draft')} are about {name} now.")
    for draft in done.left:
        note(f"{draft} stays set aside: its line for this target has learned by now.")


@app.command()
def tenant(
    ctx: typer.Context,
    name: Annotated[str | None, typer.Argument(help="A tenant. Default: show all.", metavar="NAME")] = None,
    learn: Annotated[bool | None, typer.Option("--learn/--no-learn", help="May its requests be kept?")] = None,
    share: Annotated[
        bool | None, typer.Option("--share/--no-share", help="May they train drafts that others use?")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Set or show a tenant's permissions. `[privacy]` sets those of tenants that are not listed.

    A tenant that does not share trains one draft only: that of the route to which it alone is pinned.
    """
    with surroundings(ctx).store() as store:
        if name is not None and (learn is not None or share is not None):
            store.tenants.allow(name, learn=learn, share=share)
        rows = [asdict(one) for one in ([store.tenants.get(name)] if name is not None else store.tenants.list())]
    print_rows(rows, TENANTS, as_json=as_json, empty="Nothing was said of any tenant.")


@app.command()
def log(
    ctx: typer.Context,
    subject: Annotated[
        str | None, typer.Argument(help="About this request, tenant or file.", metavar="SUBJECT")
    ] = None,
    limit: Annotated[int, typer.Option(help="The newest so many.", min=1)] = 50,
    as_json: JsonOption = False,
) -> None:
    """Show the lines of `osd audit` about stored data: who, when, and with which result."""
    with surroundings(ctx).store() as store:
        lines = store.trail.history(subject, limit, action="replay")
    print_trail(lines, as_json=as_json, empty="No admin has changed what is kept.")
