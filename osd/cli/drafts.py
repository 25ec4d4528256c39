"""`osd drafts`: the versions of the drafts' weights."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from osd.cli.context import surroundings
from osd.cli.options import JsonOption, YesOption, confirm
from osd.cli.out import NOTHING, Column, note, print_facts, print_json, print_rows, say, state, when
from storage.records import DEFAULT_DRAFT, DraftVersion, VersionState
from storage.versions.targets import SHORT

if TYPE_CHECKING:
    from storage.store import Store

app = typer.Typer(no_args_is_help=True, help="List, inspect, publish and take back versions of a draft.")

VersionArgument = Annotated[
    str, typer.Argument(help="A version's id, as `osd drafts list` shows it.", metavar="VERSION")
]
COLUMNS = (
    Column("id", "version", whole=True),
    Column("current", "current", lambda current: "●" if current else ""),
    Column("state", "state", state),
    Column("kind", "kind"),
    Column("served_by", "serves", ", ".join),
    Column("target", "target", lambda digest: digest[:SHORT] if digest else NOTHING),
    Column("created_at", "made", when, whole=True),
    Column("parent", "from", lambda parent: "no. " + str(int(parent.split("-")[-2]))),
)


@app.command("list")
def list_versions(
    ctx: typer.Context,
    draft: Annotated[str | None, typer.Option(help="This draft only.", metavar="NAME")] = None,
    as_json: JsonOption = False,
) -> None:
    """List the versions of every draft, oldest first."""
    with surroundings(ctx).store() as store:
        if draft is not None:
            store.versions.current(draft)  # raises UnknownDraft
        rows = version_rows(store, store.versions.list(draft))
    empty = "There are no drafts yet; the first one is registered when osd serves with it."
    print_rows(rows, COLUMNS, as_json=as_json, empty=empty)
    for row in rows:
        if why := row["evidence"].get(VersionState.QUARANTINED.value):
            note(f"Quarantined: {row['id']} ({why['reason']})")


@app.command()
def show(ctx: typer.Context, version: VersionArgument, as_json: JsonOption = False) -> None:
    """Show one version: where it came from, what the gate measured, whether its files are sound."""
    with surroundings(ctx).store() as store:
        facts = describe(store, store.versions.get(version))
    if as_json:
        print_json(facts)
    else:
        print_facts(flat(facts))


@app.command()
def promote(ctx: typer.Context, version: VersionArgument, yes: YesOption = False) -> None:
    """Make a version the current one, whatever the gate decided.

    Its files are checked first. Servers swap it in between two steps.
    """
    with surroundings(ctx).store() as store:
        chosen = store.versions.get(version)
        confirm(f"Serve {chosen.draft} with {version}, which is {state(chosen.state)}?", yes)
        store.versions.promote(version)
    note(f"{version} is now the current version of {chosen.draft}.")


@app.command()
def rollback(
    ctx: typer.Context,
    draft: Annotated[str, typer.Argument(help="The draft to take back.", metavar="DRAFT")] = DEFAULT_DRAFT,
    to: Annotated[
        str | None, typer.Option(help="Return to this version. Default: the parent.", metavar="VERSION")
    ] = None,
    reason: Annotated[
        str, typer.Option(help="Kept with the version that is taken back.")
    ] = "asked for on the command line",
    yes: YesOption = False,
) -> None:
    """Take back a draft's current version and return to its parent.

    Servers swap the older weights in between two steps. Nothing is deleted; `osd drafts promote` undoes it.
    """
    with surroundings(ctx).store() as store:
        current = store.versions.current(draft)
        if back := to or current.parent:  # else rolling back says why it cannot
            confirm(f"Take back {current.id} and return to {back}?", yes)
        now_current = store.versions.rollback(draft, reason, to=to)
    note(f"{now_current.id} is now the current version of {draft}.")


@app.command()
def new(
    ctx: typer.Context,
    draft: Annotated[str, typer.Argument(help="The new draft's name.", metavar="NAME")],
    target: Annotated[
        str | None, typer.Option(help="A Hugging Face folder or hub name. Default: serve.target.", metavar="MODEL")
    ] = None,
    kind: Annotated[
        Literal["small"], typer.Option(help="small: some of the target's layers with its embeddings and output layer.")
    ] = "small",
    layers: Annotated[
        int | None,
        typer.Option(help="How many layers. Default: a twelfth of the target's.", metavar="N", min=1),
    ] = None,
) -> None:
    """Make a draft for a target that has none, as number 0 of its line: `osd serve --draft NAME` starts with it.

    Its layers are evenly spaced ones of the target's, the first and the last among them. It guesses badly until it has
    learned from traffic.

    Example: `osd drafts new default --kind small --target ./target`
    """
    from osd.hotswap.new_draft import new_small_draft

    here = surroundings(ctx)
    if not (target := target or here.settings.serve.target):
        raise typer.BadParameter("no target is named; give --target, or set serve.target")
    with here.store() as store:
        version = new_small_draft(store, draft, target, layers)
        made = store.versions.provenance(version)["provenance"]
    numbers = ", ".join(map(str, made["layers"]))
    note(f"{version.id} has layers {numbers} of the {made['of']} of {target}. Serve with --draft {draft}.")
    say(version.id)


@app.command()
def export(
    ctx: typer.Context,
    version: VersionArgument,
    destination: Annotated[Path, typer.Argument(help="A folder that is not there yet.", metavar="FOLDER")],
    adapter: Annotated[
        bool, typer.Option("--adapter", help="Keep an adapter as one, over its base's folder in the store.")
    ] = False,
) -> None:
    """Write a version to a plain Hugging Face folder.

    transformers, vLLM and SGLang load it as a draft model. An adapter is merged into its base's weights. The files are
    checked against their digest first, and the folder is loaded before the command ends.
    """
    from osd.hotswap.export import export as write

    with surroundings(ctx).store() as store:
        write(store, version, destination, adapter=adapter)
    say(str(destination))


def version_rows(store: Store, versions: list[DraftVersion]) -> list[dict[str, Any]]:
    """Return rows for the table and for JSON: the current version of each draft is marked, and each names the servers
    and engines that draft with it."""
    drafts, targets = {version.draft for version in versions}, store.targets.of_lines()
    current = {store.versions.current(draft).id for draft in drafts}
    serving = [served for draft in drafts for served in store.versions.serving(draft).items()]
    return [
        {
            **asdict(version), "current": version.id in current, "target": targets.get(version.draft),
            "served_by": [server for server, serves in serving if serves == version.id],
        }
        for version in versions
    ]  # fmt: skip


def describe(store: Store, version: DraftVersion) -> dict[str, Any]:
    """Return everything known about a version. Damaged files are a finding here, not an error."""
    from storage.errors import WeightsDamaged

    try:
        store.versions.verify(version)
        files = "sound"
    except WeightsDamaged as error:
        files = str(error)
    lineage = [ancestor.id for ancestor in store.versions.lineage(version.id)]
    folder = store.versions.where(version)
    beside = store.versions.provenance(version)
    return {
        **version_rows(store, [version])[0],
        "folder": folder,
        "files": files,
        "lineage": lineage,
        "provenance": beside.get("provenance", {}),
    }


def flat(facts: dict[str, Any]) -> dict[str, str | None]:
    """Return facts as text, nested ones with dotted names."""
    lines: dict[str, str | None] = {}
    for key, value in facts.items():
        if isinstance(value, dict):
            lines.update({f"{key}.{inner}": text for inner, text in flat(value).items()})
        elif isinstance(value, (list, tuple)):
            lines[key] = (" ← " if key == "lineage" else " ").join(map(str, value))
        else:
            lines[key] = when(value) if key == "created_at" else None if value is None else state(value)
    return lines
