"""Comparison of drafts and of traffic: which draft fits samples best, whether two routes need two drafts, and whether a
route's newest requests differ from those before them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from router.clusters import LEAST, Vectors, vectors_of
from storage.errors import BadInput
from storage.names import draft_of
from storage.records import DraftVersion, RequestSamples
from storage.settings import GateSettings
from storage.store import Store
from storage.versions.feature_kinds import FEATURE_KINDS
from trainer.distil.checkpoints import load_current
from trainer.distil.gate import Comparison, comparable, compare
from trainer.distil.scores import score


@dataclass(frozen=True, slots=True)
class Fit:
    """The acceptance of a draft's current version on some requests."""

    draft: str
    version: str
    acceptance: float
    """Mean over positions of Σ min(p, q) over the stored tokens, or of agreement where only mistakes or texts alone
    were stored."""
    requests: int
    positions: int


def rank_drafts(
    store: Store,
    samples: Sequence[RequestSamples],
    device: torch.device,
) -> list[Fit]:
    """Rank every draft that routes lead to, best first; ties by name.

    Raises BadInput when no request has a position to score, WeightsDamaged.
    """
    measure, judges = comparable(samples)
    if not judges:
        raise BadInput(reason="None of the samples has a position on which drafts could be compared.")
    fits = []
    for version in _currents(store):
        scores = score(load_current(store, version, device), judges)
        positions = int(scores.positions.sum())
        reached = float(scores.of(measure).sum()) / positions
        fits.append(Fit(draft_of(version.draft), version.id, round(reached, 6), len(judges), positions))
    return sorted(fits, key=lambda fit: (-fit.acceptance, fit.draft))


def _currents(store: Store) -> list[DraftVersion]:
    """Return each draft's current version, skipping drafts without weights."""
    found = []
    for draft in sorted({draft for route in store.routes.list() for draft in route.drafts}):
        version = store.versions.find(draft, store.targets.newest())
        if version and version.kind not in FEATURE_KINDS:  # those need the target to be compared
            found.append(version)
    return found


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
    """Compare two routes (name → draft, name → newest judging samples); None when one has none, or a draft that reads
    the target's hidden states.

    Raises WeightsDamaged, UnknownDraft.
    """
    judges = {route: comparable(some) for route, some in samples.items()}
    if any(len(kept) < gate.min_requests for _, kept in judges.values()):
        return None
    target = store.targets.newest()
    versions = {draft: store.versions.current(draft, target) for draft in drafts.values()}
    if any(version.kind in FEATURE_KINDS for version in versions.values()):
        return None
    models = {draft: load_current(store, version, device) for draft, version in versions.items()}
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


NEWEST = 0.25
"""Share of the requests that count as new."""
SHUFFLES = 999
LEVEL = 0.001
"""Probability of a false alarm on traffic that did not move."""


@dataclass(frozen=True, slots=True)
class Drift:
    """The result of the comparison."""

    moved: bool
    distance: float
    """Distance between the mean vectors of old and new requests, in [0, 2]."""
    p_value: float
    """Share of random divisions with at least this distance."""
    requests: int
    new: int
    """How many of them, the newest, were compared with the others."""


def find_drift(documents: Sequence[Sequence[int]], seed: int = 0) -> Drift | None:
    """Test requests given as token ids, oldest first, for drift; None when there are too few of them."""
    new = int(len(documents) * NEWEST)
    if new < LEAST:
        return None
    vectors = vectors_of(documents, seed)
    distance = _apart(vectors, np.arange(len(vectors)) >= len(vectors) - new)
    chance = np.random.default_rng(seed)
    is_new = np.arange(len(vectors)) < new
    further = sum(_apart(vectors, chance.permutation(is_new)) >= distance for _ in range(SHUFFLES))
    p_value = (1 + further) / (1 + SHUFFLES)
    return Drift(p_value <= LEVEL, round(distance, 4), round(p_value, 4), len(documents), new)


def _apart(vectors: Vectors, is_new: npt.NDArray[np.bool_]) -> float:
    return float(np.linalg.norm(vectors[is_new].mean(axis=0) - vectors[~is_new].mean(axis=0)))
