"""Acceptance by position in the draft, and where rejections concentrate: by position, by route, by token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from storage.errors import BadInput
from storage.insights.tokens import JudgedPositions
from storage.outcomes.outcome_window import Window, grouped
from storage.outcomes.outcomes import AcceptanceRow
from storage.records import TokenKind, ratio
from storage.sql.database import Database
from storage.sql.outcome_tables import POSITION_COUNTS, PositionRow
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
    found = db.read(grouped, PositionRow, window, columns, POSITION_COUNTS)
    return [
        PlaceRow(dict(zip(by, key, strict=False)), key[-1], int(drafted), int(accepted), int(refused))
        for key, (drafted, accepted, refused) in found.items()
    ]


@dataclass(frozen=True, slots=True)
class RejectionRow:
    """The rejections of one position, one route, or one pair of tokens."""

    by: dict[str, Any]
    """The group's key: ``position``; or ``route``; or ``drafted`` and ``wanted``, two token ids."""
    rejections: int
    share: float
    """Share of all rejections examined."""
    alpha: float | None
    """Acceptance rate of the group; for a pair of tokens, that of the drafted token."""

    def as_dict(self) -> dict[str, Any]:
        """Return the row as one flat dictionary."""
        return {**self.by, "rejections": self.rejections, "share": self.share, "alpha": self.alpha}


def by_position(places: Sequence[PlaceRow]) -> list[RejectionRow]:
    """Return rejections by position, in order of position."""
    total = sum(place.refused for place in places)
    return [
        RejectionRow({"position": place.position}, place.refused, ratio(place.refused, total) or 0.0, place.alpha)
        for place in places
    ]


def by_route(routes: Sequence[AcceptanceRow]) -> list[RejectionRow]:
    """Return rejections by route, most rejections first."""
    total = sum(row.rejections for row in routes)
    ranked = sorted(routes, key=lambda row: -row.rejections)
    return [
        RejectionRow({"route": row.by["route"]}, row.rejections, ratio(row.rejections, total) or 0.0, row.alpha)
        for row in ranked
    ]


def by_token(judged: JudgedPositions, top: int) -> list[RejectionRow]:
    """Return the ``top`` most frequent (drafted, wanted) pairs of rejected and target token, most frequent first."""
    refused = judged.kinds == TokenKind.REJECTED
    pairs, counts = np.unique(np.stack([judged.drafted[refused], judged.emitted[refused]]), axis=1, return_counts=True)
    proposed, accepted = judged.drafted[judged.kinds != TokenKind.UNDRAFTED], judged.kinds == TokenKind.ACCEPTED
    ranked = np.argsort(-counts, kind="stable")[:top]
    total = int(refused.sum())
    rows = []
    for drafted, wanted, count in zip(*pairs[:, ranked].tolist(), counts[ranked].tolist(), strict=True):
        hits = int((judged.drafted[accepted] == drafted).sum()) if judged.whole else None
        alpha = None if hits is None else ratio(hits, int((proposed == drafted).sum()))
        rows.append(RejectionRow({"drafted": drafted, "wanted": wanted}, count, count / total, alpha))
    return rows
