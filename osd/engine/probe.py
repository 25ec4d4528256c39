"""A few passes at engine start, timed: what gamma rules that weigh costs know before the first request."""

from __future__ import annotations

import torch

from osd.drafters.pool import DraftPool
from osd.gamma.costs.model import probe_drafts, probe_passes
from osd.models.decoder import Decoder
from osd.models.device_timer import Clock
from osd.models.needs_draft import MODEL_DRAFTERS
from osd.models.pair import Pair, row_length
from osd.models.target_only import has_draft
from storage.settings import Settings

_ROWS = 8
"""Most rows of a probe: a full pass over hundreds would take seconds, and a draft's cache grows with its rows."""
_AT = 128
"""Position of the probes' first tokens, where there is room: what is there is written over, for no row has come."""


@torch.inference_mode()
def probe(target: Decoder, pool: DraftPool, pair: Pair, settings: Settings) -> None:
    """Time each pass twice and keep the second time, for the first makes what others use. Rows must not have come.

    The default draft's passes are timed where it proposes; what a table takes is learned from its first round.
    """
    rows, clock = min(settings.serve.max_batch, _ROWS), Clock(target.device)
    at = min(_AT, max(0, row_length(pair, settings) - 65))
    for count, tokens in probe_passes(rows):
        for _ in range(2):
            ms = _target_ms(target, clock, count, tokens // count, at)
        pool.costs.observe_verify(count, tokens, ms, count * at)
    if has_draft(pair) and settings.drafters.kind in MODEL_DRAFTERS:
        pool.default.body.decoder.cache.grow(rows)
        for count, passes, unread in probe_drafts(rows):
            for _ in range(2):
                ms = _draft_ms(pool.default.body.decoder, clock, count, passes, unread, at)
            pool.costs.unread = unread
            pool.costs.observe_draft(count, passes, ms)
        pool.costs.unread = 0
    pool.costs.begin()


def _target_ms(target: Decoder, clock: Clock, rows: int, width: int, at: int) -> float:
    tokens = torch.zeros(rows, width, dtype=torch.long, device=target.device)
    with clock:
        target.scored(tokens, [at] * rows, [width] * rows).lines.argmax(-1).cpu()
        clock.split()
    return clock.first_ms


def _draft_ms(draft: Decoder, clock: Clock, rows: int, passes: int, unread: int, at: int) -> float:
    tokens = torch.zeros(rows, 1, dtype=torch.long, device=draft.device)
    with clock:
        if unread:
            draft.read(0, [[0] * unread] * rows, [0] * rows)
        for step in range(passes):
            tokens = draft.logits(tokens, [at + step] * rows).argmax(-1)
        tokens.cpu()
        clock.split()
    return clock.first_ms
