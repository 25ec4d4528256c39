"""Creation of a draft for a new route. Reasons to refuse the route are reported before weights are copied."""

from __future__ import annotations

import json
import subprocess
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from osd.cli.context import CommandContext
from osd.cli.trainer import ask_trainer
from storage.errors import BadInput, DuplicateRoute, NotPlain, RouteWithoutDraft
from storage.names import draft_of
from storage.records import DEFAULT_DRAFT, DraftVersion, Route
from storage.routes.matches import checked
from storage.routes.route_rows import require_name
from storage.settings import Settings
from storage.store import Store
from storage.versions.feature_kinds import why_no_method
from storage.versions.forks import adopt, base_of, fork
from storage.versions.weights import kind_of

NEAREST = "nearest"


@dataclass(frozen=True, slots=True)
class RouteDraft:
    """The draft to create."""

    name: str
    origin: str | None
    """A draft, a version, a folder or ``nearest``; None means the default draft."""
    kind: str | None
    """``full`` or ``lora``; None means as the settings say."""


def add_route(store: Store, here: CommandContext, route: Route, made: RouteDraft | None) -> Route:
    """Add a route, first creating its draft if asked.

    Raises what ``store.routes.add`` raises, and for a new draft UnknownDraft, UnknownVersion, ModelNotLoaded,
    WeightsDamaged, BadInput when a draft of the name is there.
    """
    if made is None:
        if not route.draft:
            raise RouteWithoutDraft(route=route.name, reason="none is named")
        return store.routes.add(route)
    _require_addable(store, route)
    if made.origin == NEAREST:
        made = replace(made, origin=nearest(store, here, route.name))
    return store.routes.add(replace(route, draft=draft_of(make(store, here.settings, made).draft)))


def make(store: Store, settings: Settings, made: RouteDraft) -> DraftVersion:
    """Create the draft; return its current version."""
    if store.versions.list(made.name):
        raise BadInput(reason=f"There is a draft named {made.name!r} already; use it with --draft {made.name}.")
    kind = made.kind or settings.learn.method
    if made.origin is not None and Path(made.origin).is_dir():
        version = _from_folder(store, made.name, Path(made.origin))
    else:
        origin = store.versions.get(_origin(store, made.origin or DEFAULT_DRAFT, kind))
        if reason := why_no_method(origin.kind, kind):
            raise BadInput(reason=f"{origin.id}: {reason}; give --kind full.")
        version = fork(store.versions, made.name, origin.id)
    if made.kind is not None:
        store.versions.set_options(made.name, {"method": made.kind})
    return version


def nearest(store: Store, here: CommandContext, route: str) -> str:
    """Return the draft with the best acceptance on the route's stored requests, else on the newest traffic of all
    routes.

    The trainer scores them in a process of its own. Raises BadInput with its message when it fails.
    """
    named = any(row.route == route for row in store.samples.stats())
    done = ask_trainer(here, "nearest", *(["--route", route] if named else []), stderr=subprocess.PIPE)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["it gave no reason"])[-1].removeprefix("osd: ")
        raise BadInput(reason=f"The nearest draft was not found: {said}")
    return str(json.loads(done.stdout)[0]["draft"])


def _from_folder(store: Store, name: str, folder: Path) -> DraftVersion:
    """Create a draft from a model folder, or from an adapter over the default draft's number 0."""
    kind = kind_of(folder)
    if kind == "head":
        raise BadInput(reason=f"{folder} holds an acceptance head, which is no draft.")
    if kind == "full":
        return store.versions.register_root(name, folder, target=store.targets.newest())
    base = store.versions.lineage(store.versions.current(DEFAULT_DRAFT, store.targets.newest()).id)[-1]
    require_fit(store, base, folder)
    return adopt(store.versions, name, base.id, folder)


def require_fit(store: Store, base: DraftVersion, folder: Path) -> None:
    """Raise AdapterMismatch for an adapter over other weights, WeightsDamaged for one that does not load."""
    import torch

    from osd.models.lora.adapter import read_adapter, sizes_of
    from osd.models.pair import load_model

    store.versions.verify(base)
    module = load_model(store.versions.folder(base), torch.device("cpu"), "float32").module
    with suppress(NotPlain):  # it will be merged, which reports what does not work
        read_adapter(folder, folder.name, sizes_of(module), base.digest, torch.device("cpu"), torch.float32)


def _origin(store: Store, word: str, kind: str) -> str:
    """Return the version to fork. A draft's name means its current version, or the base for a new adapter."""
    drafts = {version.draft: version for version in store.versions.list()}
    if word not in drafts and any(version.id == word for version in store.versions.list()):
        return word
    target = store.targets.newest()
    return (base_of(store.versions, word, target) if kind == "lora" else store.versions.current(word, target)).id


def _require_addable(store: Store, route: Route) -> None:
    """Raise what adding the route alone would, before weights are copied."""
    require_name(route.name)
    if any(known.name == route.name for known in store.routes.list()):
        raise DuplicateRoute(route=route.name)
    checked(route.matches)
    for candidate in route.candidates:
        store.versions.current(candidate)
