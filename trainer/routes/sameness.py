"""Comparison of two routes' drafts: if one does as well on the other's traffic, one is enough."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from storage.records import RequestSamples
from storage.settings import GateSettings
from storage.store import Store
from trainer.distil.checkpoints import load_current
from trainer.distil.gate import Comparison, comparable, compare
from trainer.distil.scores import score

MARGIN = 0.02
"""Acceptance that a route may lose by a merge."""


@dataclass(frozen=True, slots=True)
class DraftComparison:
    """The loss of each of two routes if one draft served both."""

    keep: str
    """The draft that remains: the one that loses less on the other's traffic."""
    losses: dict[str, Comparison]
    """Route -> acceptance with the remaining draft against its own."""
    same: bool
    """Whether the lower limit of every loss is within MARGIN."""

    @property
    def facts(self) -> dict[str, Any]:
        """The result as plain numbers for a proposal."""
        return {"keep": self.keep, "losses": {route: asdict(loss) for route, loss in self.losses.items()}}


def compare_routes(
    store: Store, gate: GateSettings, drafts: Mapping[str, str],
    samples: Mapping[str, Sequence[RequestSamples]],
    device: torch.device, between: Callable[[], None] = lambda: None,
) -> DraftComparison | None:  # fmt: skip
    """Compare two routes (name → draft, name → newest judging samples); None when one has none.

    Raises WeightsDamaged, UnknownDraft.
    """
    judges = {route: comparable(some) for route, some in samples.items()}
    if any(len(kept) < gate.min_requests for _, kept in judges.values()):
        return None
    target = store.targets.newest()
    models = {draft: load_current(store, store.versions.current(draft, target), device) for draft in drafts.values()}
    scores = {
        draft: {route: score(model, kept, between) for route, (_, kept) in judges.items()}
        for draft, model in models.items()
    }

    def loss(route: str, keep: str) -> Comparison:
        own, other, measure = scores[drafts[route]][route], scores[keep][route], judges[route][0]
        return compare(own.positions, own.of(measure), other.of(measure), gate.confidence)

    best: DraftComparison | None = None
    for keep in models:
        losses = {route: loss(route, keep) for route in drafts}
        same = all(drafts[route] == keep or lost.lower > -MARGIN for route, lost in losses.items())
        found = DraftComparison(keep, losses, same)
        if best is None or _worst(found) > _worst(best):
            best = found
    return best


def _worst(found: DraftComparison) -> float:
    return min(loss.difference for loss in found.losses.values())
