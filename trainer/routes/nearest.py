"""Ranking of drafts by acceptance on given samples. A new route's draft starts from the best one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from storage.errors import BadInput, UnknownDraft
from storage.names import draft_of
from storage.records import DraftVersion, RequestSamples
from storage.store import Store
from storage.versions.feature_kinds import FEATURE_KINDS
from trainer.distil.checkpoints import load_current
from trainer.distil.gate import comparable
from trainer.distil.scores import score


@dataclass(frozen=True, slots=True)
class Fit:
    """The acceptance of a draft's current version on some requests."""

    draft: str
    version: str
    acceptance: float
    """Mean over positions of Σ min(p, q) over the stored tokens, or of agreement where only mistakes were stored."""
    requests: int
    positions: int


def rank_drafts(
    store: Store,
    samples: Sequence[RequestSamples],
    device: torch.device,
    drafts: Sequence[str] | None = None,
    between: Callable[[], None] = lambda: None,
) -> list[Fit]:
    """Rank every draft that routes lead to (or those named), best first; ties by name.

    Raises BadInput when no request has a position to score, UnknownDraft for a name without weights, WeightsDamaged.
    """
    measure, judges = comparable(samples)
    if not judges:
        raise BadInput(reason="None of the samples has a position on which drafts could be compared.")
    fits = []
    for version in _currents(store, drafts):
        scores = score(load_current(store, version, device), judges, between)
        positions = int(scores.positions.sum())
        reached = float(scores.of(measure).sum()) / positions
        fits.append(Fit(draft_of(version.draft), version.id, round(reached, 6), len(judges), positions))
    return sorted(fits, key=lambda fit: (-fit.acceptance, fit.draft))


def _currents(store: Store, drafts: Sequence[str] | None) -> list[DraftVersion]:
    """Return each draft's current version, skipping drafts without weights unless they were named."""
    if drafts is not None:
        return [store.versions.current(draft, store.targets.newest()) for draft in drafts]
    found = []
    for draft in sorted({draft for route in store.routes.list() for draft in route.drafts}):
        try:
            version = store.versions.current(draft, store.targets.newest())
        except UnknownDraft:
            continue
        if version.kind not in FEATURE_KINDS:  # those need the target to be compared
            found.append(version)
    return found
