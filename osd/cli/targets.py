"""`osd targets`: the targets that served with a store, and which succeeds which."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from osd.cli.command import CommandGroup
from osd.cli.context import CommandContext
from osd.cli.drafts import flat
from osd.cli.options import Confirmation
from osd.cli.out import Format, Output, columns, count, note, when
from storage.versions.targets import SHORT

app = CommandGroup("List the targets that served, and say which succeeds which.")

SHORTENED, DATE = Format(lambda digest: digest[:SHORT]), Format(when, whole=True)
COLUMNS = columns(
    {"digest": SHORTENED, "predecessor": SHORTENED, "served_at": DATE, "first_seen": DATE},
    digest="target", name="from", predecessor="succeeds", requests="requests", first_seen="first seen",
    served_at="served",
)  # fmt: skip


TargetArgument = Annotated[
    str, typer.Argument(metavar="TARGET"), "How its digest begins, as `osd targets list` shows it."
]
OldArgument = Annotated[str, typer.Argument(metavar="OLD"), "How the digest of the earlier one begins."]
NewArgument = Annotated[str, typer.Argument(metavar="NEW"), "How that of its successor does."]


@app.command("list")
def list_targets(here: CommandContext, output: Output) -> None:
    """List the targets, in the order in which they came."""
    with here.store() as store:
        requests = store.targets.requests()
        rows = [asdict(one) | {"requests": requests.get(one.digest, 0)} for one in store.targets.served()]
    output.rows(rows, COLUMNS, empty="No target has served with this store yet.")


@app.command()
def show(here: CommandContext, name: TargetArgument, output: Output) -> None:
    """Show a target: what it succeeds, how far it is from earlier ones, and the drafts' lines about it.

    The divergence is by earlier target and route: the mean total variation distance on texts that both have read. From
    1/2 on nothing of the earlier one is learned from.
    """
    with here.store() as store:
        digest = store.targets.named(name)
        found = next(one for one in store.targets.served() if one.digest == digest)
        lines = [line for line, about in store.targets.of_lines().items() if about == digest]
        facts = {**asdict(found), "ancestors": store.targets.ancestors(digest), "lines": sorted(lines)}
    output.facts(facts, flat(facts))


@app.command()
def succeed(here: CommandContext, old: OldArgument, new: NewArgument) -> None:
    """Declare NEW the successor of OLD, which has the same architecture and vocabulary.

    Drafts that have learned nothing about NEW are offered what they have learned about OLD: it serves once it is judged
    on NEW, by the next `osd serve`, or by the trainer. serve.successors declares it by itself.
    """
    with here.store() as store:
        store.targets.succeed(store.targets.named(old), store.targets.named(new))
    note(f"{new} succeeds {old}.")


@app.command()
def forget(here: CommandContext, name: TargetArgument, consent: Confirmation) -> None:
    """Forget a target that serves no more: its samples are deleted, and nothing is inherited from it any more.

    The versions about it stay in `osd drafts list`; `osd drafts delete` lets their weights go.
    """
    with here.store() as store:
        digest = store.targets.named(name)
        consent.ask(f"Forget {digest[:SHORT]}, and delete what it answered? This cannot be undone.")
        store.targets.require_old(digest)
        gone = store.samples.purge(target=digest)
        store.targets.forget(digest)  # the last step: what was interrupted is found by its name again
    note(f"{digest[:SHORT]} is forgotten, and {count(gone.requests)} requests.")
