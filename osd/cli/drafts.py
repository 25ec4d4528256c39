"""`osd drafts`: the versions of the drafts' weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from osd.cli.command import CommandGroup
from osd.cli.context import CommandContext
from osd.cli.options import Count, Model, Name
from osd.cli.out import Format, Output, columns, note, print_json, print_table, say, state, when
from storage.records import DraftVersion, VersionState
from storage.versions.targets import SHORT

if TYPE_CHECKING:
    from storage.store import Store

app = CommandGroup("List, inspect, publish and take back versions of a draft.")

VersionArgument = Annotated[
    str,
    typer.Argument(metavar="VERSION"),
    "A version's id, as `osd drafts list` shows it, or a name: current, previous, DRAFT:NAME.",
]
COLUMNS = columns(
    {"target": Format(lambda digest: digest[:SHORT]), "parent": Format(lambda id: f"no. {int(id.split('-')[-2])}")},
    id="version", current="current", names="called", state="state", bytes="size", kind="kind", served_by="serves",
    target="target", created_at="made", parent="from",
)  # fmt: skip


@dataclass(frozen=True)
class VersionFilter:
    """The versions that are listed."""

    draft: Name | None = None
    """This draft only."""
    everything: Annotated[bool, typer.Option("--all")] = False
    """Those whose weights were deleted, too."""


@app.command("list")
def list_versions(here: CommandContext, wanted: VersionFilter, output: Output) -> None:
    """List the versions of every draft, oldest first."""
    from storage.insights.runs import without_version

    with here.store() as store:
        if wanted.draft is not None:
            store.versions.current(wanted.draft)  # raises UnknownDraft
        rows = version_rows(store, store.versions.list(wanted.draft, deleted=wanted.everything))
        missed = [run for draft in {row["draft"]: 0 for row in rows} if (run := without_version(store.db, draft))]
    if output.as_json:
        print_json(rows)
        return
    told = [{**row, "current": mark(row), "bytes": None if row["deleted_at"] else row["bytes"]} for row in rows]
    print_table(told, COLUMNS, empty="There are no drafts yet; the first one is registered when osd serves with it.")
    tell_holds({row["draft"]: row["hold"] for row in rows if row["hold"]})
    for run in missed:
        note(f"{run.draft}: the last run, of {when(run.started_at)}, ended without a new version: {run.reason}")
    for row in rows:
        if why := row["evidence"].get(VersionState.QUARANTINED.value):
            note(f"Quarantined: {row['id']} ({why['reason']})")


@app.command()
def show(here: CommandContext, version: VersionArgument, output: Output) -> None:
    """Show one version: where it came from, what the gate measured, whether its files are sound."""
    with here.store() as store:
        facts = describe(store, store.versions.get(version))
    output.facts(facts, flat(facts))


@dataclass(frozen=True)
class NewDraft:
    """The draft that is made."""

    draft: Annotated[str, typer.Argument(metavar="NAME")]
    """The new draft's name."""
    target: Model | None = None
    """A Hugging Face folder or hub name. Default: serve.target."""
    source: Annotated[str, typer.Option("--from", metavar="REPO")] | None = None
    """Fetch it from this repository of the Hub."""
    kind: Literal["small", "medusa", "eagle", "eagle3", "peagle", "dflash", "mtp"] = "small"
    """small: some of the target's layers with its embeddings and output layer. mtp: the head in the target's
    checkpoint, or a random one. Others: random weights over the target's hidden states."""
    layers: Count | None = None
    """How many layers (small, peagle, dflash). Default: a twelfth of the target's; 2."""
    heads: Annotated[int, typer.Option(metavar="N", min=1, max=64)] | None = None
    """How many heads (medusa). Default: 4."""


@app.command()
def new(here: CommandContext, wanted: NewDraft) -> None:
    """Make a draft for a target that has none, as number 0 of its line: `osd serve --draft NAME` starts with it.

    A small draft's layers are evenly spaced ones of the target's, the first and the last among them. Other kinds read
    the hidden states of the target's pass, with its embeddings and output layer; where learn.draft_vocabulary is set
    they propose so many tokens. peagle and dflash draft all tokens in one pass. All guess badly until they have learned
    from traffic. With --from it is what `osd drafts push` put on the Hub, or any draft for the target.

    Example: `osd drafts new default --kind small --target ./target`
    """
    from osd.hotswap.hub import new_from_hub
    from osd.hotswap.new_draft import new_feature_version, new_small_draft

    draft, kind = wanted.draft, wanted.kind
    if not (target := wanted.target or here.settings.serve.target):
        raise typer.BadParameter("no target is named; give --target, or set serve.target")
    if wanted.layers is not None and kind not in ("small", "peagle", "dflash"):
        raise typer.BadParameter(f"a draft of kind {kind} has one layer; leave --layers out")
    if wanted.heads is not None and kind != "medusa":
        raise typer.BadParameter("only --kind medusa has heads to count")
    if wanted.source and (kind != "small" or wanted.layers):
        raise typer.BadParameter("--from fetches a draft as it is; leave --kind and --layers out")
    with here.store() as store:
        if wanted.source:
            version = new_from_hub(store, draft, target, wanted.source)
        elif kind == "small":
            version = new_small_draft(store, draft, target, wanted.layers)
        else:
            tokens = here.settings.learn.draft_vocabulary
            version = new_feature_version(store, draft, target, kind, wanted.heads, tokens, wanted.layers)
        made = store.versions.provenance(version)["provenance"]
        kept = {name: made[name] for name in ("of", "layers", "kind", "from") if name in made}
        store.trail.note("drafts new", version.id, kept)
    note(f"{version.id} {_what_it_has(made, target)}. Serve with --draft {draft}.")
    tell_who_serves(kind)
    say(version.id)


def tell_who_serves(kind: str) -> None:
    """Say which engines serve a kind of draft no more."""
    if kind == "medusa":
        note("vLLM serves Medusa heads up to 0.32; 0.33 and later have no such method. EAGLE heads go with both.")


def _what_it_has(made: Mapping[str, Any], target: str) -> str:
    """Say what a new draft is made of."""
    if "from" in made:
        return f"is {made['from']} at {made['revision']}"
    if "kind" in made:
        weights = "weights of the target's own MTP head" if made["taken"] else "random weights"
        return f"has {made['parameters']:,} {weights}, and reads the hidden states of {target}"
    return f"has layers {', '.join(map(str, made['layers']))} of the {made['of']} of {target}"


@app.command()
def export(
    here: CommandContext,
    version: VersionArgument,
    destination: Annotated[Path, typer.Argument(help="A folder that is not there yet.", metavar="FOLDER")],
    adapter: Annotated[bool, "Keep an adapter as one, over its base's folder in the store."] = False,
    speculators: Annotated[
        bool, "Write an EAGLE-3, P-EAGLE or DFlash draft in the speculators library's form."
    ] = False,
    merged: Annotated[bool, "Write the target's checkpoint with this MTP head in it."] = False,
) -> None:
    """Write a version to a plain Hugging Face folder.

    transformers, vLLM and SGLang load it as a draft model. An adapter is merged into its base's weights. The files are
    checked against their digest first, and the folder is loaded before the command ends. With --speculators it names
    its target and learn.steps drafted tokens, or DFlash's block, and `vllm serve FOLDER` serves both. With --merged
    vLLM drafts by what the target brings: --speculative-config '{"method": "mtp", "num_speculative_tokens": 4}'.
    """
    with here.store() as store:
        version = store.versions.get(version).id
        from osd.hotswap.export import export as write  # takes seconds, which a refusal need not

        tokens = here.settings.learn.steps if speculators else None
        write(store, version, destination, adapter=adapter, speculators=tokens, merged=merged)
        store.trail.note("drafts export", version, {"folder": destination.name, "adapter": adapter})
        tell_who_serves(store.versions.get(version).kind)
    say(str(destination))


@app.command()
def push(
    here: CommandContext,
    version: VersionArgument,
    repo: Annotated[str, typer.Argument(help="A repository of the Hub: NAME/REPO.", metavar="REPO")],
    public: Annotated[bool, "Make the repository public, where it is made."] = False,
) -> None:
    """Upload a version to the Hub with a model card: what it is for, learned from and brings, and how it is served.

    Weights, configuration and tokenizer leave this machine, and sums by route; no text of a request does. The token is
    that of `hf auth login` or HF_TOKEN.

    Example: `osd drafts push current me/my-draft`
    """
    with here.store() as store:
        version = store.versions.get(version).id
        from osd.hotswap.hub import push as upload  # takes seconds, which a refusal need not

        address = upload(store, version, repo, private=not public)
        store.trail.note("drafts push", version, {"repo": repo, "public": public})
    say(address)


def version_rows(store: Store, versions: list[DraftVersion]) -> list[dict[str, Any]]:
    """Return rows for the table and for JSON: the current version of each draft is marked, with what holds it, and each
    names the servers and engines that draft with it."""
    drafts, holds = {version.draft for version in versions}, holds_of(store, None)
    current = {store.versions.current(draft).id for draft in drafts}
    targets, names = store.targets.of_lines(), store.decisions.aliases()
    serving = [served for draft in drafts for served in store.versions.serving(draft).items()]
    return [
        {
            **asdict(version), "current": version.id in current, "target": targets.get(version.draft),
            "names": names.get(version.id, []),
            "hold": holds.get(version.draft) if version.id in current else None,
            "served_by": [server for server, serves in serving if serves == version.id],
        }
        for version in versions
    ]  # fmt: skip


def mark(row: Mapping[str, Any]) -> str:
    """Format whether a version is current, and whether it is held there."""
    return ("● " + (state(row["hold"]["kind"]) if row["hold"] else "")).strip() if row["current"] else ""


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


def holds_of(store: Store, draft: str | None) -> dict[str, dict[str, Any]]:
    """Return draft -> its hold, of one draft or of all that are held."""
    return {name: asdict(hold) for name, hold in store.decisions.holds().items() if draft in (None, name)}


def tell_holds(holds: Mapping[str, Mapping[str, Any]]) -> None:
    """Say which drafts are held, where, why and what lifts it."""
    for draft, hold in holds.items():
        note(
            f"{draft} is {hold['kind'].value} at {hold['version']} since {when(hold['at'])} ({hold['reason']}); "
            f"`osd drafts resume {draft}` lets it learn again."
        )
