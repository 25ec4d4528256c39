"""The serving processes for display: which version each drafts with, and whether it is the intended one."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from storage.access.processes import ServingProcess
from storage.errors import NotFound
from storage.records import now
from storage.sql.drivers import plain
from storage.store import Store
from storage.versions.canaries import Canary, CanaryState


def roster(store: Store) -> list[dict[str, Any]]:
    """Return a dictionary for each process, oldest first, in JSON types.

    Each holds the record's fields, ``age`` (seconds since its heartbeat), and ``drafts``: a list with draft, the routes
    served, version, digest, whether that is the version this process should serve (``matches``), and whether the
    process tries it before the others (``canary``).
    """
    routes: dict[str, list[str]] = {}
    for route in store.routes.list():
        for name in route.drafts:
            routes.setdefault(name, []).append(route.name)
    servers = store.servers.list()
    trials = {each.draft: each for each in store.canaries.list() if each.state is CanaryState.WATCHING}
    current = _current(store, {_line(holds) for server in servers for holds in server.drafts.values()})
    return [_row(server, routes, trials, current) for server in servers]


def _line(holds: Mapping[str, Any]) -> str:
    """Return the line of the version that a server holds, by the version's name."""
    return str(holds["version"]).rsplit("-", 2)[0]


def _current(store: Store, drafts: set[str]) -> dict[str, str]:
    found = {}
    for draft in drafts:
        with suppress(NotFound):
            found[draft] = store.versions.current(draft).id
    return found


def _row(
    server: ServingProcess, routes: dict[str, list[str]], trials: dict[str, Canary], current: dict[str, str]
) -> dict[str, Any]:
    drafts = []
    for name, holds in sorted(server.drafts.items()):
        line = _line(holds)
        trial = trials.get(line)
        mine = trial is not None and trial.worker == server.id
        wanted = current.get(line) if trial is None else trial.version if mine else trial.base
        matches, tries = holds["version"] == wanted, mine and trial is not None and holds["version"] == trial.version
        drafts.append({"draft": name, "routes": routes.get(name, []), **holds, "matches": matches, "canary": tries})
    facts = asdict(server) | {"state": server.state.value, "age": max(0.0, now() - server.heartbeat_at)}
    return dict(plain(facts | {"drafts": drafts}))
