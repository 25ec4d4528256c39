"""The ways of serving that are compared, each over a store of its own.

single       one draft learns from everything
routed       a full draft for each domain, found by topic
routed_lora  an adapter over the shared base for each domain
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from storage.errors import BadSetting
from storage.records import DEFAULT_DRAFT, Route
from storage.store import Store
from storage.versions.forks import fork

ARMS = ("single", "routed", "routed_lora")


def require_arms(names: Sequence[str]) -> tuple[str, ...]:
    """The arms of these names. Raises BadSetting for another one."""
    for name in names:
        if name not in ARMS:
            raise BadSetting(source="option", key="arms", reason=f"{name!r} is none of {', '.join(ARMS)}")
    return tuple(dict.fromkeys(names))


def set_up(store: Store, arm: str, draft: Path, teaching: Mapping[str, Sequence[str]]) -> list[str]:
    """Give the store the arm's drafts, routes and taught topics; the names of the drafts that learn.

    ``teaching``: examples of each domain, which are not served.
    """
    root = store.versions.register_root(DEFAULT_DRAFT, draft)
    if arm == "single":
        return [DEFAULT_DRAFT]
    for domain in teaching:
        fork(store.versions, domain, root.id)
        store.versions.set_options(domain, {"method": "lora" if arm == "routed_lora" else "full"})
        store.routes.add(Route(domain, domain, {"topic": [domain]}), who="osd bench routes")
    store.examples.teach(((domain, text) for domain, texts in teaching.items() for text in texts), who="bench")
    return list(teaching)
