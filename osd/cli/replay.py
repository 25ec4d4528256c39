"""`osd replay`: the samples stored for learning."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from osd.cli.context import surroundings
from osd.cli.options import JsonOption, YesOption, confirm, moment
from osd.cli.out import Column, count, note, print_json, print_rows, say, size, when

app = typer.Typer(no_args_is_help=True, help="See, take out and delete what is kept for learning.")

SHOWN = 5
"""Number of requests set aside whose reason is shown."""

COLUMNS = (
    Column("route", "route"),
    Column("requests", "requests", count, right=True),
    Column("positions", "positions", count, right=True),
    Column("bytes", "size", size, right=True, whole=True),
    Column("hidden_bytes", "hidden\nstates", size, right=True, whole=True),
    Column("waiting", "waiting", count, right=True),
    Column("holdout", "held\nout", count, right=True),
    Column("set_aside", "set\naside", count, right=True),
    Column("oldest", "oldest", when),
    Column("newest", "newest", when),
)


@app.command()
def stats(ctx: typer.Context, as_json: JsonOption = False) -> None:
    """Show how much is kept, by route.

    Size is on the disk, hidden states included (serve.record_hidden_states).
    Waiting requests have not been trained on yet. Held-out ones never are: they judge candidates. Set aside are those
    on which training failed again and again; `osd replay retry` takes them back.
    """
    with surroundings(ctx).store() as store:
        rows = [asdict(row) for row in store.samples.stats()]
        aside, unnamed = store.suspects.list(SHOWN), store.targets.unnamed()
    print_rows(rows, COLUMNS, as_json=as_json, empty="Nothing has been kept yet.")
    for each in aside:
        note(f"Set aside: {each.request_id} ({each.reason})")
    if unnamed:
        note(f"Set aside: {count(unnamed)} requests that name no target; `osd replay adopt` says which it was.")


@app.command()
def retry(ctx: typer.Context) -> None:
    """Let training take requests again that were set aside.

    Example: `osd replay retry` after an update that mends what made runs fail
    """
    with surroundings(ctx).store() as store:
        back = store.suspects.retry()
        store.trail.note("replay retry", None, {"requests": back})
    note(f"{count(back)} requests may be trained on again.")


@app.command()
def export(
    ctx: typer.Context,
    destination: Annotated[Path, typer.Argument(help="A .parquet file that is not there yet.", metavar="FILE")],
    route: Annotated[str | None, typer.Option(help="This route only.", metavar="NAME")] = None,
) -> None:
    """Write the kept samples to one Parquet file, for DuckDB or pandas.

    It holds the requests' tokens, so treat it as you treat the prompts.
    """
    with surroundings(ctx).store() as store:
        written = store.samples.export(destination, routes=None if route is None else [route])
        store.trail.note("replay export", destination.name, {"route": route, "requests": written.requests})
    say(str(destination))
    note(f"{count(written.requests)} requests, {count(written.positions)} positions, {size(written.bytes)}.")


@app.command()
def purge(
    ctx: typer.Context,
    request: Annotated[str | None, typer.Option(help="The samples of this request.", metavar="ID")] = None,
    tenant: Annotated[str | None, typer.Option(help="Every sample of this tenant.", metavar="NAME")] = None,
    route: Annotated[str | None, typer.Option(help="Every sample of this route.", metavar="NAME")] = None,
    before: Annotated[
        float | None, typer.Option(parser=moment, metavar="WHEN", help="What is older: an age (30d) or a date.")
    ] = None,
    segment: Annotated[str | None, typer.Option(help="One segment, readable or not.", metavar="ID")] = None,
    target: Annotated[
        str | None, typer.Option(help="Every sample about this target: its digest, or how it begins.", metavar="DIGEST")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", "--everything", help="All of it.")] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Delete what is kept for learning.

    Options narrow each other: --tenant with --before deletes that tenant's older samples. Weights that have
    learned from them stay.
    """
    chosen: dict[str, Any] = {
        "request_id": request,
        "tenant": tenant,
        "route": route,
        "before": before,
        "segment": segment,
        "target": target,
    }
    chosen = {name: value for name, value in chosen.items() if value is not None}
    if bool(chosen) == everything:
        options = "--request, --tenant, --route, --before, --segment or --target"
        raise typer.BadParameter(f"say what: {options}, or --all alone")
    confirm(f"Delete {what(chosen)}? This cannot be undone.", yes)
    with surroundings(ctx).store() as store:
        if target is not None:
            chosen["target"] = store.targets.named(target)
        purged = store.samples.purge(**chosen, everything=everything)
        store.trail.note("replay purge", request or tenant, {**chosen, "all": everything, **asdict(purged)})
    if as_json:
        print_json(asdict(purged))
    else:
        note(f"Deleted {count(purged.requests)} requests ({size(purged.bytes)}).")


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
