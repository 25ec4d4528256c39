"""Why acceptance is low: where rejections concentrate, and what the target wanted instead."""

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
    """Rejections that have something in common."""

    by: dict[str, Any]
    """``position``; or ``route``; or ``drafted`` and ``wanted``, two token ids."""
    rejections: int
    share: float
    """Of all rejections that were looked at."""
    alpha: float | None
    """Acceptance rate there; of a pair of tokens, how often the drafted one is accepted."""

    def as_dict(self) -> dict[str, Any]:
        """One flat dictionary."""
        return {**self.by, "rejections": self.rejections, "share": self.share, "alpha": self.alpha}


def by_position(places: Sequence[PlaceRow]) -> list[RejectionRow]:
    """Place after place."""
    total = sum(place.refused for place in places)
    return [
        RejectionRow({"position": place.position}, place.refused, ratio(place.refused, total) or 0.0, place.alpha)
        for place in places
    ]


def by_route(routes: Sequence[AcceptanceRow]) -> list[RejectionRow]:
    """The route with most rejections first."""
    total = sum(row.rejections for row in routes)
    ranked = sorted(routes, key=lambda row: -row.rejections)
    return [
        RejectionRow({"route": row.by["route"]}, row.rejections, ratio(row.rejections, total) or 0.0, row.alpha)
        for row in ranked
    ]


def by_token(judged: JudgedPositions, top: int) -> list[RejectionRow]:
    """The ``top`` most frequent pairs of a drafted token and the one that the target wanted, most frequent first."""
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
