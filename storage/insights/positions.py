"""Acceptance by position in the draft."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from storage.errors import BadInput
from storage.outcomes.outcome_window import Window, grouped
from storage.records import ratio
from storage.sql.database import Database
from storage.sql.outcome_positions import POSITION_COUNTS
from storage.sql.outcome_tables import PositionRow
from storage.sql.spans import SPANS

GROUPS: dict[str, Any] = {"route": PositionRow.route, "version": PositionRow.draft_version} | dict.fromkeys(SPANS)
"""Columns to group by besides the position; a time is the Unix second at which its span starts."""


@dataclass(frozen=True, slots=True)
class PlaceRow:
    """The counts of one position in the draft, from 0, within one group."""

    by: Mapping[str, Any]
    position: int
    drafted: int
    accepted: int
    refused: int
    """Rounds that ended with a rejection at this position."""

    @property
    def alpha(self) -> float | None:
        """Conditional acceptance rate at this position, given that all before were accepted: accepted ÷ (accepted +
        refused)."""
        return ratio(self.accepted, self.accepted + self.refused)

    @property
    def draft_acceptance_rate(self) -> float | None:
        """Accepted ÷ drafted at this position, as in vLLM's per-position counters."""
        return ratio(self.accepted, self.drafted)

    @property
    def wasted(self) -> int:
        """Tokens drafted here after a rejected token, and so never judged."""
        return self.drafted - self.accepted - self.refused

    def as_dict(self) -> dict[str, Any]:
        """Return the group, the position, the measures and the counts as one flat dictionary."""
        facts = asdict(self)
        by, position = facts.pop("by"), facts.pop("position")
        rates = {"alpha": self.alpha, "draft_acceptance_rate": self.draft_acceptance_rate}
        return {**by, "position": position, **rates, **facts, "wasted": self.wasted}


def positions(db: Database, window: Window, by: Sequence[str] = ()) -> list[PlaceRow]:
    """Return acceptance by position, grouped by route, version, and one of minute, hour, day. Raises BadInput for
    another."""
    if unknown := [name for name in by if name not in GROUPS]:
        raise BadInput(reason=f"Places in a draft cannot be told apart by {unknown[0]!r}; known: {', '.join(GROUPS)}.")
    columns = {name: GROUPS[name] for name in by} | {"position": PositionRow.position}
    with db.session(read_only=True) as session:
        found = grouped(session, PositionRow, window, columns, POSITION_COUNTS)
    return [
        PlaceRow(dict(zip(by, key, strict=False)), key[-1], int(drafted), int(accepted), int(refused))
        for key, (drafted, accepted, refused) in found.items()
    ]
