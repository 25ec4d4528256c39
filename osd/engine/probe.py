"""A few passes at engine start, timed: what gamma rules that weigh costs know before the first request."""

from __future__ import annotations

from functools import partial

import torch

from osd.drafters.pool import DraftPool
from osd.gamma.costs import probes
from osd.models.decoder import Decoder
from osd.models.device_timer import Clock
from osd.models.needs_draft import MODEL_DRAFTERS
from osd.models.pair import Pair, row_limit
from osd.models.target_only import has_draft
from storage.settings import Settings

_ROWS = 8
"""Most rows of a probe: a full pass over hundreds would take seconds."""
_AT = 128
"""Position of the probes' first tokens, where there is room."""
_SHORTEST = 64
"""Positions of a row without which nothing is probed."""


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
    beside = pool.decoder.beside(rows, limit) if drafts else None
    time_draft = None if beside is None else partial(_draft_ms, beside, at)
    probes.probe(pool.costs, rows, at, partial(_target_ms, spare, at), time_draft)


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
