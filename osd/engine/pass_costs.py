"""What passes cost: a few are timed at an engine's start, for gamma rules that weigh costs; and routers that compare
drafts ask."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from osd.drafters.feature_drafter import FeatureDraftModel
from osd.drafters.pool import DraftPool
from osd.gamma.costs.model import probe as time_passes
from osd.models.decoder import Decoder
from osd.models.device_timer import Clock
from osd.models.features.decoder import FeatureDecoder
from osd.models.needs_draft import MODEL_DRAFTERS
from osd.models.pair import Pair, row_limit
from osd.models.target_only import has_draft
from router.throughput import Costs
from storage.settings import Settings

_ROWS = 8
"""Most rows of a probe: a full pass over hundreds would take seconds."""
_AT = 128
"""Position of the probes' first tokens, where there is room."""
_SHORTEST = 64
"""Positions of a row without which nothing is probed."""


class PassCosts:
    """What passes cost, for a router that compares drafts (Theorem 3 of on-the-fly adaptation)."""

    def __init__(self, pool: DraftPool) -> None:
        self._pool = pool

    def draft_ms(self, draft: str, rows: int = 1) -> float | None:
        """Return the milliseconds of one draft pass over ``rows`` rows; None for a draft not in memory or not yet
        timed."""
        loaded = self._pool.loaded_drafts.get(draft)
        return None if loaded is None else loaded.body.costs(self._pool.costs).passes_ms(rows, 1)

    def of(self, draft: str, gamma_max: int) -> Costs | None:
        """Return what rounds of one row cost with this draft, up to ``gamma_max`` tokens; None while too little was
        timed."""
        draft_ms = self.draft_ms(draft)
        verify_ms = [self.verify_ms(gamma + 1) for gamma in range(gamma_max + 1)]
        known = [ms for ms in verify_ms if ms is not None]
        return None if draft_ms is None or len(known) < len(verify_ms) else Costs(draft_ms, known)

    def verify_ms(self, tokens: int, rows: int = 1) -> float | None:
        """Return the milliseconds of a target pass of ``tokens`` in all over ``rows`` rows; None while none was
        timed."""
        return self._pool.costs.verify_ms(rows, tokens)


@torch.inference_mode()
def probe(target: Decoder, pool: DraftPool, pair: Pair, settings: Settings) -> None:
    """Time a few shapes for about a tenth of a second.

    The passes are over caches of their own, so the engine's stay as they are. The default draft's are timed where it
    proposes; what a table takes is learned from its first round.
    """
    rows, drafts = min(settings.serve.max_batch, _ROWS), has_draft(pair) and settings.drafters.kind in MODEL_DRAFTERS
    limit = min(row_limit(pair, settings.serve), pool.default.limit if drafts else target.cache.limit)
    if limit < _SHORTEST:
        return
    at = min(_AT, limit - _SHORTEST)
    spare = target.beside(rows, limit)
    time_draft = _timed_draft(pool, rows, limit, at) if drafts else None
    time_passes(pool.costs, rows, at, partial(_target_ms, spare, at), time_draft)


def _timed_draft(pool: DraftPool, rows: int, limit: int, at: int) -> Callable[[int, int, int], float]:
    """Return what times the default draft's passes, over a cache of their own."""
    body = pool.default.body
    if isinstance(body, FeatureDraftModel):
        return partial(_feature_ms, body.drafter.features.beside(rows, limit), at)
    return partial(_draft_ms, pool.decoder.beside(rows, limit), at)


def _feature_ms(draft: FeatureDecoder, at: int, rows: int, passes: int, unread: int) -> float:
    sizes = (rows, max(1, unread))
    features = torch.zeros(*sizes, draft.draft.feature_size, dtype=draft.cache_dtype, device=draft.device)
    tokens = torch.zeros(sizes, dtype=torch.long, device=draft.device)
    with Clock(draft.device) as clock:
        passes = min(passes, draft.most)
        hidden = draft.read([0] * rows, features, tokens, [sizes[1]] * rows, ahead=passes)
        for step in range(passes):
            draft.logits(hidden, step).argmax(-1).cpu()
            hidden = draft.go_on([at + step] * rows, hidden, tokens[:, 0]) if step + 1 < passes else hidden
        clock.split()
    return clock.first_busy_ms


def _target_ms(target: Decoder, at: int, rows: int, width: int) -> float:
    tokens = torch.zeros(rows, width, dtype=torch.long, device=target.device)
    with Clock(target.device) as clock:
        target.scored(tokens, [at] * rows, [width] * rows).lines.argmax(-1).cpu()
        clock.split()
    return clock.first_busy_ms


def _draft_ms(draft: Decoder, at: int, rows: int, passes: int, unread: int) -> float:
    token = torch.zeros(rows, 1, dtype=torch.long, device=draft.device)
    with Clock(draft.device) as clock:
        if unread:
            draft.read(0, [[0] * unread] * rows, [0] * rows)
        for step in range(passes):
            draft.logits(token, [at + step] * rows).argmax(-1).cpu()
        clock.split()
    return clock.first_busy_ms
