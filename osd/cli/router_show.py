"""`osd router list`, `show`, `history`: the routes and their changes."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osd.cli.audit import print_trail
from osd.cli.context import surroundings
from osd.cli.options import JsonOption
from osd.cli.out import Column, count, print_facts, print_json, print_rows, print_table, share, when
from osd.cli.router import RouteArgument, app
from storage.records import Route

if TYPE_CHECKING:
    from storage.store import Store

COLUMNS = (
    Column("name", "route", whole=True),
    Column("draft", "draft", whole=True),
    Column("candidates", "candidates", ", ".join),
    Column("matches", "matches", lambda matches: matching(matches)),
    Column("pins", "pinned", ", ".join),
    Column("requests", "requests", count, right=True),
    Column("alpha", "α", share, right=True),
    Column("waiting", "waiting", count, right=True),
)


@app.command("list")
def list_routes(ctx: typer.Context, as_json: JsonOption = False) -> None:
    """List the routes: who serves what, and how well."""
    with surroundings(ctx).store() as store:
        rows = route_rows(store, store.routes.list())
    print_rows(rows, COLUMNS, as_json=as_json)


@app.command()
def show(ctx: typer.Context, route: RouteArgument, as_json: JsonOption = False) -> None:
    """Show one route: its drafts, their versions and acceptance, what is kept, its topics' examples, its history."""
    with surroundings(ctx).store() as store:
        facts = describe(store, store.routes.get(route))
    if as_json:
        print_json(facts)
        return
    drafts, changes = facts.pop("drafts"), facts.pop("history")
    facts |= {"matches": matching(facts["matches"]), "created_at": facts["created_at"] and when(facts["created_at"])}
    facts["examples"] = ", ".join(f"{topic}: {number}" for topic, number in facts["examples"].items())
    print_facts({key: ", ".join(value) if isinstance(value, (list, tuple)) else value for key, value in facts.items()})
    print_table(drafts, DRAFTS, title="\nDrafts")
    print_trail(changes, as_json=False, title="Changes", empty="It was never changed.")


DRAFTS = (
    Column("draft", "draft", whole=True),
    Column("version", "current version", whole=True),
    Column("kind", "kind"),
    Column("requests", "requests here", count, right=True),
    Column("alpha", "α here", share, right=True),
)


@app.command()
def history(
    ctx: typer.Context,
    route: Annotated[
        str | None, typer.Argument(help="This route only, former names included.", metavar="ROUTE")
    ] = None,
    limit: Annotated[int, typer.Option(help="The newest so many.", min=1)] = 50,
    as_json: JsonOption = False,
) -> None:
    """Show the lines of `osd audit` about routes: who changed what and when, the newest first."""
    with surroundings(ctx).store() as store:
        lines = store.routes.history(route, limit)
    print_trail(lines, as_json=as_json, empty="Nothing was changed yet.")


def route_rows(store: Store, routes: list[Route]) -> list[dict[str, Any]]:
    """Return rows for the table and for JSON."""
    pins, made = store.routes.pins(), store.routes.created()
    outcomes = {row.by["route"]: row for row in store.outcomes.acceptance(by=["route"])}
    kept = {row.route: row for row in store.samples.stats()}
    rows = []
    for route in routes:
        outcome, samples = outcomes.get(route.name), kept.get(route.name)
        rows.append({
            "name": route.name, "draft": route.draft, "candidates": list(route.candidates),
            "matches": dict(route.matches), "pins": sorted(t for t, name in pins.items() if name == route.name),
            "created_at": made[route.name], "requests": outcome.requests if outcome else 0,
            "alpha": outcome.alpha if outcome else None, "samples": samples.requests if samples else 0,
            "waiting": samples.waiting if samples else 0,
        })  # fmt: skip
    return rows


def describe(store: Store, route: Route) -> dict[str, Any]:
    """Return everything known about a route."""
    aliases = store.routes.plan().aliases
    taught = store.examples.counts()
    return {
        **route_rows(store, [route])[0],
        "former_names": sorted(name for name, now in aliases.items() if now == route.name),
        "examples": {topic: taught.get(topic, 0) for topic in route.matches.get("topic", ())},
        "drafts": [draft_row(store, route, draft) for draft in route.drafts],
        "history": [asdict(line) for line in store.routes.history(route.name, 10)],
    }


def draft_row(store: Store, route: Route, draft: str) -> dict[str, Any]:
    """Return one draft of a route, with its statistics there."""
    from storage.errors import UnknownDraft

    did = store.outcomes.acceptance(route=route.name, draft=draft)
    facts = {"draft": draft, "requests": did[0].requests if did else 0, "alpha": did[0].alpha if did else None}
    try:
        version = store.versions.current(draft)
    except UnknownDraft:  # the default draft before its first server
        return facts | {"version": None, "kind": None, "options": {}}
    return facts | {"version": version.id, "kind": version.kind, "options": store.versions.options(draft)}


def matching(matches: Any) -> str:
    """Format a route's conditions on one line."""
    parts = [f"{key} {' | '.join(value) if isinstance(value, list) else value}" for key, value in matches.items()]
    return ", ".join(parts)
