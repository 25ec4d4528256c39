"""The groups in which rejections concentrate, and the tokens that the target wanted instead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from storage.insights.judged import JudgedPositions
from storage.insights.positions import PlaceRow
from storage.outcomes.outcomes import AcceptanceRow
from storage.records import TokenKind, ratio

KINDS = ("position", "route", "token")


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
