"""`python -m trainer routes`: find routes in the traffic, and apply proposals. `osd router` calls these."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from storage.errors import BadInput, TrainingFailed
from storage.routes.proposals import RouteProposal
from storage.settings import Settings, load_settings
from trainer.lease import RunStopped, stop_on_signals, until_stopped

app = typer.Typer(no_args_is_help=True, help="Find routes in the traffic, and apply what was found. Prints JSON.")

Config = Annotated[
    Path | None, typer.Option(help="Configuration file. Default: $OSD_CONFIG, then osd.toml here.", metavar="FILE")
]
Route = Annotated[list[str] | None, typer.Option(help="This route's traffic only; may be repeated.", metavar="NAME")]
Requests = Annotated[int, typer.Option(help="Newest requests that are looked at.", min=1, metavar="N")]
Number = Annotated[int, typer.Argument(help="The proposal's number.")]
Who = Annotated[str | None, typer.Option(help="For the audit trail. Default: login and host.")]


@app.command()
def discover(config: Config = None, route: Route = None, requests: Requests = 800, seed: int = 0) -> None:
    """Cluster the newest traffic, train a candidate for each cluster, and propose what would win."""
    from trainer.routes.apply import apply_open
    from trainer.routes.discover import Search
    from trainer.routes.discover import discover as find

    settings = load_settings(config)
    _set_threads(settings)
    with stop_on_signals() as stop, _store(settings) as store:
        between = until_stopped(stop, "it was stopped; nothing more was proposed")
        search = Search(route or None, requests, seed, _say, between)
        try:
            found = find(store, settings, search)
        except RunStopped as error:
            raise TrainingFailed(run="of discovery", draft="(candidates)", reason=str(error)) from None
        store.trail.note("router discover", None, {"proposals": [proposal.id for proposal in found]})
        if settings.router.apply_proposals:
            found = apply_open(store, found)
    _print([_facts(proposal) for proposal in found])


@app.command()
def nearest(config: Config = None, route: Route = None, requests: Requests = 64) -> None:
    """Rank the drafts by acceptance on the newest requests (of the routes named), best first."""
    settings = load_settings(config)
    with _store(settings) as store:
        ids = store.samples.recent(limit=requests, routes=route or None, target=store.targets.newest())
        if not ids:
            raise BadInput(reason=f"There are no samples{f' of {route[0]}' if route else ''} to compare drafts on.")
        from trainer.devices import training_device  # takes seconds, which a refusal need not
        from trainer.routes.compare import rank_drafts

        _set_threads(settings)
        fits = rank_drafts(store, store.samples.read(ids), training_device(settings.trainer))
    _print([asdict(fit) for fit in fits])


@app.command()
def apply(
    number: Number,
    config: Config = None,
    name: Annotated[str | None, typer.Option(help="Another name for the new route.")] = None,
    who: Who = None,
) -> None:
    """Apply a proposal."""
    from trainer.routes.apply import apply as do

    with _store(load_settings(config)) as store:
        _print([_facts(do(store, number, name=name, who=who))])


@app.command()
def decline(number: Number, config: Config = None) -> None:
    """Settle a proposal without doing anything."""
    from trainer.routes.apply import decline as settle

    with _store(load_settings(config)) as store:
        _print([_facts(settle(store, number))])


def _set_threads(settings: Settings) -> None:
    import torch

    torch.set_num_threads(settings.trainer.threads)


def _store(settings: Settings) -> Any:
    from storage.sql.audit import act
    from storage.store import open_store

    act("cli")
    return open_store(settings)


def _say(done: int, of: int) -> None:
    typer.echo(f"{done} of {of} requests trained on", err=True)


def _facts(proposal: RouteProposal) -> dict[str, Any]:
    """Return the proposal's facts without the lists of requests, which are for applying it."""
    facts = {key: value for key, value in proposal.facts.items() if key not in ("members", "examples")}
    return {"id": proposal.id, "kind": proposal.kind.value, "state": proposal.state.value, **facts}


def _print(rows: list[dict[str, Any]]) -> None:
    json.dump(rows, sys.stdout)
    sys.stdout.write("\n")
