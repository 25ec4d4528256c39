"""Holds: a person's decision about what a draft serves, which nothing replaces until it is lifted.

    pinned    at the version that was named
    frozen    at the version that is current; by hand, or by a promotion or a roll-back by hand

While a draft is held no run of it begins, one under way ends and gives its requests back, nothing is published, and the
watch takes nothing back. Damaged weights are left all the same, for the nearest sound version before them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from storage import records
from storage.errors import DraftHeld
from storage.sql.drivers import plain
from storage.sql.tables import DraftRow


class HoldKind(str, Enum):
    """The kind of a hold."""

    PINNED = "pinned"  # at a version that was named
    FROZEN = "frozen"  # at what was current


@dataclass(frozen=True, slots=True)
class Hold:
    """One draft's hold."""

    kind: HoldKind
    version: str
    reason: str
    at: float
    """Unix seconds."""

    @property
    def words(self) -> str:
        """What is held, where and since when, for people."""
        since = datetime.fromtimestamp(self.at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return f"{self.kind.value} at {self.version} since {since} ({self.reason})"


def set_hold(draft: DraftRow, kind: HoldKind, reason: str) -> Hold:
    """Hold a locked draft at its current version."""
    hold = Hold(kind, str(draft.current_version), reason, records.now())
    draft.hold = plain(asdict(hold))
    return hold


def hold_of(draft: DraftRow) -> Hold | None:
    """Return a draft's hold; None where it is free."""
    return to_hold(draft.hold)


def to_hold(facts: Mapping[str, Any]) -> Hold | None:
    """Convert a column's facts to a record."""
    return Hold(**{**facts, "kind": HoldKind(facts["kind"])}) if facts else None


def require_free(draft: DraftRow) -> None:
    """Raise DraftHeld while the draft is held."""
    if hold := hold_of(draft):
        raise DraftHeld(draft=draft.name, held=hold.words)


def held(session: Session) -> dict[str, Hold]:
    """Return draft -> its hold, of those that are held."""
    rows = session.execute(select(DraftRow.name, DraftRow.hold).order_by(DraftRow.name))
    return {name: hold for name, facts in rows if (hold := to_hold(facts))}
