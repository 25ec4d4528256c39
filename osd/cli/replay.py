"""`osd replay`: the samples stored for learning. What keeps them in order is in osd.cli.replay_keep."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from osd.cli.command import CommandGroup
from osd.cli.context import CommandContext
from osd.cli.options import Confirmation, Id, Moment, Name
from osd.cli.out import Output, columns, count, note, say, size, when

app = CommandGroup("See, take out and delete what is kept for learning.")

SHOWN = 5
"""Number of requests set aside whose reason is shown."""

COLUMNS = columns(
    route="route", requests="requests", positions="positions", bytes="size", hidden_bytes="hidden\nstates",
    waiting="waiting", holdout="held\nout", set_aside="set\naside", oldest="oldest", newest="newest",
)  # fmt: skip


@app.command()
def stats(here: CommandContext, output: Output) -> None:
    """Show how much is kept, by route.

    Size is on the disk, hidden states included (serve.record_hidden_states).
    Waiting requests have not been trained on yet. Held-out ones never are: they judge candidates. Set aside are those
    on which training failed again and again; `osd replay retry` takes them back.
    """
    with here.store() as store:
        rows = [asdict(row) for row in store.samples.stats()]
        aside, unnamed = store.suspects.list(SHOWN), store.targets.unnamed()
    output.rows(rows, COLUMNS, empty="Nothing has been kept yet.")
    for each in aside:
        note(f"Set aside: {each.request_id} ({each.reason})")
    if unnamed:
        note(f"Set aside: {count(unnamed)} requests that name no target; `osd replay adopt` says which it was.")


@app.command()
def retry(here: CommandContext) -> None:
    """Let training take requests again that were set aside.

    Example: `osd replay retry` after an update that mends what made runs fail
    """
    with here.store() as store:
        back = store.suspects.retry()
        store.trail.note("replay retry", None, {"requests": back})
    note(f"{count(back)} requests may be trained on again.")


@app.command()
def export(
    here: CommandContext,
    destination: Annotated[Path, typer.Argument(help="A .parquet file that is not there yet.", metavar="FILE")],
    route: Annotated[str | None, typer.Option(help="This route only.", metavar="NAME")] = None,
) -> None:
    """Write the kept samples to one Parquet file, for DuckDB or pandas.

    It holds the requests' tokens, so treat it as you treat the prompts.
    """
    with here.store() as store:
        written = store.samples.export(destination, routes=None if route is None else [route])
        store.trail.note("replay export", destination.name, {"route": route, "requests": written.requests})
    say(str(destination))
    note(f"{count(written.requests)} requests, {count(written.positions)} positions, {size(written.bytes)}.")


@dataclass(frozen=True)
class SampleFilter:
    """The samples that are deleted; what is given narrows the rest."""

    request: Id | None = None
    """The samples of this request."""
    tenant: Name | None = None
    """Every sample of this tenant."""
    route: Name | None = None
    """Every sample of this route."""
    before: Moment | None = None
    """What is older: an age (30d) or a date."""
    segment: Id | None = None
    """One segment, readable or not."""
    target: Annotated[str, typer.Option(metavar="DIGEST")] | None = None
    """Every sample about this target: its digest, or how it begins."""
    everything: Annotated[bool, typer.Option("--all", "--everything")] = False
    """All of it."""

    def chosen(self) -> dict[str, Any]:
        """Return what is given, by the names of the store. Raises BadParameter unless that is something, or all."""
        given = {"request_id": self.request, **{name: getattr(self, name) for name in NARROWING}}
        chosen = {name: value for name, value in given.items() if value is not None}
        if bool(chosen) == self.everything:
            options = "--request, --tenant, --route, --before, --segment or --target"
            raise typer.BadParameter(f"say what: {options}, or --all alone")
        return chosen


NARROWING = ("tenant", "route", "before", "segment", "target")


@app.command()
def purge(here: CommandContext, wanted: SampleFilter, consent: Confirmation, output: Output) -> None:
    """Delete what is kept for learning.

    Options narrow each other: --tenant with --before deletes that tenant's older samples. Weights that have
    learned from them stay.
    """
    chosen = wanted.chosen()
    consent.ask(f"Delete {what(chosen)}? This cannot be undone.")
    with here.store() as store:
        if wanted.target is not None:
            chosen["target"] = store.targets.named(wanted.target)
        purged = store.samples.purge(**chosen, everything=wanted.everything)
        facts = {**chosen, "all": wanted.everything, **asdict(purged)}
        store.trail.note("replay purge", wanted.request or wanted.tenant, facts)
    output.words(asdict(purged), f"Deleted {count(purged.requests)} requests ({size(purged.bytes)}).")


def what(chosen: dict[str, Any]) -> str:
    """Describe the selected samples for people."""
    words = {
        "request_id": "of request {}",
        "tenant": "of tenant {}",
        "route": "of route {}",
        "segment": "in segment {}",
        "target": "about the target {}",
    }
    parts = [words[name].format(value) for name, value in chosen.items() if name in words]
    if "before" in chosen:
        parts.append(f"from before {when(chosen['before'])}")
    return " ".join(["the samples", *parts]) if parts else "every sample that is kept"
