"""What holds a draft where it is, for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from osd.cli.out import note, when

if TYPE_CHECKING:
    from storage.store import Store


def holds_of(store: Store, draft: str | None) -> dict[str, dict[str, Any]]:
    """Return draft -> its hold, of one draft or of all that are held."""
    return {name: asdict(hold) for name, hold in store.decisions.holds().items() if draft in (None, name)}


def tell_holds(holds: Mapping[str, Mapping[str, Any]]) -> None:
    """Say which drafts are held, where, why and what lifts it."""
    for draft, hold in holds.items():
        note(
            f"{draft} is {hold['kind'].value} at {hold['version']} since {when(hold['at'])} ({hold['reason']}); "
            f"`osd drafts resume {draft}` lets it learn again."
        )
