"""`osd router`: changes of routes, candidates, conditions and pins; the rest is in

    osd.cli.router_show       list, show, history, explain, eval
    osd.cli.router_files      teach, forget, export, import
    osd.cli.router_discover   discover, proposals, apply, decline, split, merge

Every change is recorded with who made it, when, and what was before and after; servers follow it within
``router.poll_seconds``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from osd.cli.command import CommandGroup
from osd.cli.context import CommandContext
from osd.cli.options import Confirmation
from osd.cli.out import Output
from osd.cli.trainer import become, trainer_command
from storage.records import EVERYBODY, Route

if TYPE_CHECKING:
    from storage.store import Store

app = CommandGroup("See and steer which draft serves which traffic.")

RouteArgument = Annotated[str, typer.Argument(help="A route, as `osd router list` shows it.", metavar="ROUTE")]


@dataclass(frozen=True)
class DraftOfRoute:
    """The draft of a route."""

    draft: Annotated[str, typer.Option(metavar="DRAFT")] | None = None
    """The draft that serves it, as `osd drafts list` names it."""


@dataclass(frozen=True)
class NewDraftOptions:
    """The draft that is made for a route, if one is."""

    new_draft: bool = False
    """Make a draft for it, of the route's name or that of --draft."""
    origin: Annotated[str, typer.Option("--from", metavar="DRAFT|VERSION|FOLDER|nearest")] | None = None
    """What the new draft starts from; nearest is the one that guesses best. Default: the default draft."""
    kind: Literal["full", "lora"] | None = None
    """How the new draft is trained. Default: as learn.method says."""


@dataclass(frozen=True)
class Conditions:
    """Further drafts of a route, and the requests that take it."""

    candidate: Annotated[list[str], typer.Option(metavar="DRAFT")] | None = None
    """A further draft that may serve it; may be repeated."""
    language: list[str] | None = None
    """Takes requests in this language (en, de, yue); may be repeated."""
    topic: list[str] | None = None
    """Takes requests on this topic; may be repeated."""
    tenant: list[str] | None = None
    """Takes requests of this tenant; may be repeated."""
    model: list[str] | None = None
    """Takes requests that ask for this model, as of an adapter's name; may be repeated."""
    pattern: Annotated[str, typer.Option(metavar="REGEX")] | None = None
    """Takes requests in which this regular expression (RE2) is found."""

    @property
    def candidates(self) -> tuple[str, ...]:
        """The further drafts."""
        return tuple(self.candidate or ())

    @property
    def matches(self) -> dict[str, Any]:
        """The given conditions as a route's ``matches``."""
        from storage.routes.matches import KEYS

        return {key: value for key in KEYS if (value := getattr(self, key))}


@app.command()
def add(
    here: CommandContext,
    name: Annotated[str, typer.Argument(help="The new route's name.", metavar="NAME")],
    served: DraftOfRoute,
    new: NewDraftOptions,
    conditions: Conditions,
    output: Output,
) -> None:
    """Add a route.

    All conditions given must hold for a request to take it, any value of one condition will do. Without conditions it
    takes requests that name it, and tenants pinned to it.

    Examples: `osd router add sql --new-draft --topic sql`, `osd router add german --draft german --language de`
    """
    from osd.cli.router_drafts import RouteDraft, add_route

    wanted = Route(name, served.draft or "", conditions.matches, conditions.candidates)
    made = RouteDraft(served.draft or name, new.origin, new.kind) if new.new_draft else None
    if made is None and (new.origin or new.kind):
        raise typer.BadParameter("--from and --kind are about a new draft; give --new-draft too")
    with here.store() as store:
        route = add_route(store, here, wanted, made)
    tell(route, f"The route {route.name} is served by the draft {route.draft}.", output)


@app.command()
def change(
    here: CommandContext,
    route: RouteArgument,
    served: DraftOfRoute,
    conditions: Conditions,
    output: Output,
    clear: Annotated[bool, "Forget the route's candidates and conditions that are not given."] = False,
) -> None:
    """Change a route: what is given replaces what was there, the rest stays unless --clear."""
    with here.store() as store:
        old = store.routes.get(route)
        kept: dict[str, Any] = {} if clear else dict(old.matches)
        others = conditions.candidates if conditions.candidates or clear else old.candidates
        changed = store.routes.change(Route(route, served.draft or old.draft, kept | conditions.matches, others))
    tell(changed, f"The route {changed.name} is served by the draft {changed.draft}.", output)


@app.command()
def remove(here: CommandContext, route: RouteArgument, consent: Confirmation, output: Output) -> None:
    """Remove a route with its pins; its requests take other routes from then on.

    Its draft stays, and so do its samples, under its name: `osd replay purge --route` deletes them.
    """
    with here.store() as store:
        require_removable(store, route)
        consent.ask(f"Remove the route {route}{pinned_words(store, route)}?")
        gone = store.routes.remove(route)
    tell(gone, f"The route {route} is removed.", output)


@app.command()
def rename(
    here: CommandContext,
    route: RouteArgument,
    to: Annotated[str, typer.Argument(help="Its new name.", metavar="NAME")],
    output: Output,
) -> None:
    """Give a route another name; its pins, samples and counters follow.

    The old name goes on leading to it until another route takes it.
    """
    with here.store() as store:
        renamed = store.routes.rename(route, to)
    tell(renamed, f"The route {route} is now called {to}.", output)


@app.command()
def pin(
    here: CommandContext,
    tenant: Annotated[str, typer.Argument(help=f"A tenant, or {EVERYBODY} for all others.", metavar="TENANT")],
    route: RouteArgument,
    output: Output,
) -> None:
    """Send a tenant's requests to a route, whatever they say; a request that names a route still takes that one."""
    with here.store() as store:
        store.routes.pin(tenant, route)
        pins = store.routes.pins()
    output.words(pins, f"{tenant} is pinned to {route}.")


@app.command()
def unpin(
    here: CommandContext,
    tenant: Annotated[str, typer.Argument(help=f"A pinned tenant, or {EVERYBODY}.", metavar="TENANT")],
    output: Output,
) -> None:
    """Let a tenant's requests be routed by their contents again."""
    with here.store() as store:
        store.routes.unpin(tenant)
        pins = store.routes.pins()
    output.words(pins, f"{tenant} is pinned no longer.")


@app.command()
def train(
    here: CommandContext,
    route: RouteArgument,
    output: Output,
    force: Annotated[bool, "Train on whatever waits, however little, instead of when it is due."] = False,
) -> None:
    """Train a route's draft now, in this process, on its routes' waiting requests.

    The gate decides as always whether the result is served. Ctrl-C ends it after the step at hand.
    """
    with here.store() as store:
        draft = store.routes.get(route).draft
        store.trail.note("router train", route, {"draft": draft, "force": force})
    if force:
        os.environ["OSD_LEARN__INTERVAL_REQUESTS"] = "1"
    become([*trainer_command("once", config=here.config), "--draft", draft, *(["--json"] if output.as_json else [])])


def require_removable(store: Store, route: str) -> None:
    """Raise what removing the route would, before the user is asked. Raises UnknownRoute, DefaultRoute."""
    from storage.routes.route_rows import require_not_default

    store.routes.get(route)
    require_not_default(route, "removed")


def pinned_words(store: Store, route: str) -> str:
    """Describe the pins that are removed with a route."""
    tenants = [tenant for tenant, pinned in sorted(store.routes.pins().items()) if pinned == route]
    return f" and the pins of {', '.join(tenants)}" if tenants else ""


def tell(route: Route, words: str, output: Output) -> None:
    """Print the route as JSON, or a sentence on what happened."""
    from storage.routes.route_rows import as_facts

    output.words(as_facts(route), words)
