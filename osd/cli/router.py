"""`osd router`: changes of routes, candidates, conditions and pins; the rest is in

    osd.cli.router_show     list, show, history
    osd.cli.router_ask      explain, eval
    osd.cli.router_files    teach, forget, export, import

Every change is recorded with who made it, when, and what was before and after; servers follow it within
``router.poll_seconds``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from osd.cli.context import surroundings
from osd.cli.options import JsonOption, YesOption, confirm
from osd.cli.out import note, print_json
from osd.cli.trainer import become, trainer_command
from storage.records import EVERYBODY, Route

if TYPE_CHECKING:
    from storage.store import Store

app = typer.Typer(no_args_is_help=True, help="See and steer which draft serves which traffic.")

RouteArgument = Annotated[str, typer.Argument(help="A route, as `osd router list` shows it.", metavar="ROUTE")]
DraftOption = Annotated[
    str | None, typer.Option(help="The draft that serves it, as `osd drafts list` names it.", metavar="DRAFT")
]
CandidateOption = Annotated[
    list[str] | None, typer.Option(help="A further draft that may serve it; may be repeated.", metavar="DRAFT")
]
LanguageOption = Annotated[
    list[str] | None, typer.Option(help="Takes requests in this language (en, de, yue); may be repeated.")
]
TopicOption = Annotated[list[str] | None, typer.Option(help="Takes requests on this topic; may be repeated.")]
TenantOption = Annotated[list[str] | None, typer.Option(help="Takes requests of this tenant; may be repeated.")]
PatternOption = Annotated[
    str | None, typer.Option(help="Takes requests in which this regular expression (RE2) is found.", metavar="REGEX")
]


@app.command()
def add(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="The new route's name.", metavar="NAME")],
    draft: DraftOption = None,
    new_draft: Annotated[
        bool, typer.Option("--new-draft", help="Make a draft for it, of the route's name or that of --draft.")
    ] = False,
    origin: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="What the new draft starts from; nearest is the one that guesses best. Default: the default draft.",
            metavar="DRAFT|VERSION|FOLDER|nearest",
        ),
    ] = None,
    kind: Annotated[
        Literal["full", "lora"] | None,
        typer.Option(help="How the new draft is trained. Default: as learn.method says."),
    ] = None,
    candidate: CandidateOption = None,
    language: LanguageOption = None,
    topic: TopicOption = None,
    tenant: TenantOption = None,
    pattern: PatternOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add a route.

    All conditions given must hold for a request to take it, any value of one condition will do. Without conditions it
    takes requests that name it, and tenants pinned to it.

    Examples: `osd router add sql --new-draft --topic sql`, `osd router add german --draft german --language de`
    """
    from osd.cli.router_drafts import NewDraft, add_route

    wanted = Route(name, draft or "", conditions(language, topic, tenant, pattern), tuple(candidate or ()))
    made = NewDraft(draft or name, origin, kind) if new_draft else None
    if made is None and (origin or kind):
        raise typer.BadParameter("--from and --kind are about a new draft; give --new-draft too")
    with surroundings(ctx).store() as store:
        route = add_route(store, surroundings(ctx), wanted, made)
    tell(route, f"The route {route.name} is served by the draft {route.draft}.", as_json)


@app.command()
def change(
    ctx: typer.Context,
    route: RouteArgument,
    draft: DraftOption = None,
    candidate: CandidateOption = None,
    language: LanguageOption = None,
    topic: TopicOption = None,
    tenant: TenantOption = None,
    pattern: PatternOption = None,
    clear: Annotated[
        bool, typer.Option("--clear", help="Forget the route's candidates and conditions that are not given.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Change a route: what is given replaces what was there, the rest stays unless --clear."""
    with surroundings(ctx).store() as store:
        old = store.routes.get(route)
        matches = conditions(language, topic, tenant, pattern)
        kept: dict[str, Any] = {} if clear else dict(old.matches)
        others = tuple(candidate or ()) if candidate or clear else old.candidates
        wanted = Route(route, draft or old.draft, kept | matches, others)
        changed = store.routes.change(wanted)
    tell(changed, f"The route {changed.name} is served by the draft {changed.draft}.", as_json)


@app.command()
def remove(ctx: typer.Context, route: RouteArgument, yes: YesOption = False, as_json: JsonOption = False) -> None:
    """Remove a route with its pins; its requests take other routes from then on.

    Its draft stays, and so do its samples, under its name: `osd replay purge --route` deletes them.
    """
    with surroundings(ctx).store() as store:
        require_removable(store, route)
        confirm(f"Remove the route {route}{pinned_words(store, route)}?", yes)
        gone = store.routes.remove(route)
    tell(gone, f"The route {route} is removed.", as_json)


@app.command()
def rename(
    ctx: typer.Context,
    route: RouteArgument,
    to: Annotated[str, typer.Argument(help="Its new name.", metavar="NAME")],
    as_json: JsonOption = False,
) -> None:
    """Give a route another name; its pins, samples and counters follow.

    The old name goes on leading to it until another route takes it.
    """
    with surroundings(ctx).store() as store:
        renamed = store.routes.rename(route, to)
    tell(renamed, f"The route {route} is now called {to}.", as_json)


@app.command()
def pin(
    ctx: typer.Context,
    tenant: Annotated[str, typer.Argument(help=f"A tenant, or {EVERYBODY} for all others.", metavar="TENANT")],
    route: RouteArgument,
    as_json: JsonOption = False,
) -> None:
    """Send a tenant's requests to a route, whatever they say; a request that names a route still takes that one."""
    with surroundings(ctx).store() as store:
        store.routes.pin(tenant, route)
        pins = store.routes.pins()
    print_json(pins) if as_json else note(f"{tenant} is pinned to {route}.")


@app.command()
def unpin(
    ctx: typer.Context,
    tenant: Annotated[str, typer.Argument(help=f"A pinned tenant, or {EVERYBODY}.", metavar="TENANT")],
    as_json: JsonOption = False,
) -> None:
    """Let a tenant's requests be routed by their contents again."""
    with surroundings(ctx).store() as store:
        store.routes.unpin(tenant)
        pins = store.routes.pins()
    print_json(pins) if as_json else note(f"{tenant} is pinned no longer.")


@app.command()
def train(
    ctx: typer.Context,
    route: RouteArgument,
    force: Annotated[
        bool, typer.Option("--force", help="Train on whatever waits, however little, instead of when it is due.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Train a route's draft now, in this process, on its routes' waiting requests.

    The gate decides as always whether the result is served. Ctrl-C ends it after the step at hand.
    """
    import os

    here = surroundings(ctx)
    with here.store() as store:
        draft = store.routes.get(route).draft
        store.trail.note("router train", route, {"draft": draft, "force": force})
    if force:
        os.environ["OSD_LEARN__INTERVAL_REQUESTS"] = "1"
    become([*trainer_command("once", config=here.config), "--draft", draft, *(["--json"] if as_json else [])])


def conditions(
    language: list[str] | None, topic: list[str] | None, tenant: list[str] | None, pattern: str | None
) -> dict[str, Any]:
    """Return the given conditions as a route's ``matches``."""
    given = {"language": language, "topic": topic, "tenant": tenant, "pattern": pattern}
    return {key: value for key, value in given.items() if value}


def require_removable(store: Store, route: str) -> None:
    """Raise what removing the route would, before the user is asked. Raises UnknownRoute, DefaultRoute."""
    from storage.routes.route_rows import require_not_default

    store.routes.get(route)
    require_not_default(route, "removed")


def pinned_words(store: Store, route: str) -> str:
    """Describe the pins that are removed with a route."""
    tenants = [tenant for tenant, pinned in sorted(store.routes.pins().items()) if pinned == route]
    return f" and the pins of {', '.join(tenants)}" if tenants else ""


def tell(route: Route, words: str, as_json: bool) -> None:
    """Print the route as JSON, or a sentence on what happened."""
    from storage.routes.route_rows import as_facts

    print_json(as_facts(route)) if as_json else note(words)
