"""Acceptance by place in the draft."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from storage.errors import BadInput
from storage.outcomes.outcome_window import Window, grouped
from storage.records import ratio
from storage.sql.database import Database
from storage.sql.outcome_positions import POSITION_COUNTS
from storage.sql.spans import SPANS
from storage.sql.tables import PositionRow

GROUPS: dict[str, Any] = {"route": PositionRow.route, "version": PositionRow.draft_version} | dict.fromkeys(SPANS)
"""What places can be told apart by besides; a time is the Unix second at which it starts."""


@dataclass(frozen=True, slots=True)
class PlaceRow:
    """One place in the draft, counted from 0, within one group."""

    by: Mapping[str, Any]
    position: int
    drafted: int
    accepted: int
    refused: int
    """Rounds that this place ended."""

    @property
    def alpha(self) -> float | None:
        """The chance that a token is accepted here, given that all before it were: accepted ÷ (accepted + refused)."""
        return ratio(self.accepted, self.accepted + self.refused)

    @property
    def draft_acceptance_rate(self) -> float | None:
        """Accepted ÷ drafted here; vLLM's counters by position say the same."""
        return ratio(self.accepted, self.drafted)

    @property
    def wasted(self) -> int:
        """Drafted behind a token that was refused, and so never judged."""
        return self.drafted - self.accepted - self.refused

    def as_dict(self) -> dict[str, Any]:
        """One flat dictionary: the group, the place, the measures, the counts."""
        facts = asdict(self)
        by, position = facts.pop("by"), facts.pop("position")
        rates = {"alpha": self.alpha, "draft_acceptance_rate": self.draft_acceptance_rate}
        return {**by, "position": position, **rates, **facts, "wasted": self.wasted}


def positions(db: Database, window: Window, by: Sequence[str] = ()) -> list[PlaceRow]:
    """Places in the draft, by any of route, version, and one of minute, hour, day. Raises BadInput for another."""
    if unknown := [name for name in by if name not in GROUPS]:
        raise BadInput(reason=f"Places in a draft cannot be told apart by {unknown[0]!r}; known: {', '.join(GROUPS)}.")
    columns = {name: GROUPS[name] for name in by} | {"position": PositionRow.position}
    with db.session(read_only=True) as session:
        found = grouped(session, PositionRow, window, columns, POSITION_COUNTS)
    return [
        PlaceRow(dict(zip(by, key, strict=False)), key[-1], int(drafted), int(accepted), int(refused))
        for key, (drafted, accepted, refused) in found.items()
    ]
