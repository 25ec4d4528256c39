"""A draft for a new route: where it starts, and that nothing is left behind when the route cannot be added."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from storage.errors import BadInput, DuplicateRoute, RouteWithoutDraft
from storage.forks import base_of, fork
from storage.matches import checked
from storage.records import DEFAULT_DRAFT, DraftVersion, Route
from storage.route_rows import require_name
from storage.settings import Settings
from storage.store import Store


@dataclass(frozen=True, slots=True)
class NewDraft:
    """A draft to be made."""

    name: str
    origin: str | None
    """A draft, a version or a folder; None is the default draft."""
    kind: str | None
    """full or lora; None is as the settings say."""


def add_route(store: Store, settings: Settings, route: Route, made: NewDraft | None) -> Route:
    """Add a route, and its draft first where one is to be made.

    Raises what ``store.routes.add`` raises, and for a new draft UnknownDraft, UnknownVersion, ModelNotLoaded,
    WeightsDamaged, BadInput when a draft of the name is there.
    """
    if made is None:
        if not route.draft:
            raise RouteWithoutDraft(route=route.name, reason="none is named")
        return store.routes.add(route)
    _require_addable(store, route)
    version = make(store, settings, made)
    return store.routes.add(replace(route, draft=version.draft))


def make(store: Store, settings: Settings, made: NewDraft) -> DraftVersion:
    """The new draft's current version."""
    if store.versions.list(made.name):
        raise BadInput(reason=f"There is a draft named {made.name!r} already; use it with --draft {made.name}.")
    kind = made.kind or settings.learn.method
    folder = None if made.origin is None else Path(made.origin)
    if folder is not None and folder.is_dir():
        version = store.versions.register_root(made.name, folder)
    else:
        version = fork(store.versions, made.name, _origin(store, made.origin or DEFAULT_DRAFT, kind))
    if made.kind is not None:
        store.versions.set_options(made.name, {"method": made.kind})
    return version


def _origin(store: Store, word: str, kind: str) -> str:
    """The version to fork. A draft's name stands for its current version, or for the base of a new adapter."""
    drafts = {version.draft: version for version in store.versions.list()}
    if word not in drafts and any(version.id == word for version in store.versions.list()):
        return word
    return (base_of(store.versions, word) if kind == "lora" else store.versions.current(word)).id


def _require_addable(store: Store, route: Route) -> None:
    """What the route alone would be refused for, before weights are copied."""
    require_name(route.name)
    if any(known.name == route.name for known in store.routes.list()):
        raise DuplicateRoute(route=route.name)
    checked(route.matches)
    for candidate in route.candidates:
        store.versions.current(candidate)
