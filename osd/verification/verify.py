"""Verification: one target pass over each row's last token and its draft, and what it accepts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from osd.draft import Draft
from osd.draft_tree import moves
from osd.logits import RaggedLogits
from osd.models.attention_metadata import lay_out
from osd.models.decoder import Decoder
from osd.sequence import SequenceState
from osd.verification.logits_processors import process_target
from osd.verification.lossy import LossyRule, judge_lossy
from osd.verification.result import VerifyResult, judge
from osd.verification.verify_trees import judge_trees
from osd.verification.warping import Warp


def verify(
    target: Decoder,
    rows: Sequence[SequenceState],
    draft: Draft,
    warp: Warp | None,
    chance: Tensor | None,
    *,
    keep_chances: bool,
    lossy: LossyRule | None = None,
) -> tuple[RaggedLogits, VerifyResult]:
    """Run the target; return its logits after each row's last token and each drafted one, and the result: exact, but
    for rows that sample under a ``lossy`` rule. The cache then holds the accepted tokens of trees in their order."""
    last = torch.tensor([[row.tokens[-1]] for row in rows], device=target.device)
    starts, counts = [row.length - 1 for row in rows], [length + 1 for length in draft.lengths]
    layout = None if draft.trees is None else lay_out(draft.trees, draft.size + 1, target.device)
    scored = target.scored(torch.cat([last, draft.tokens], dim=1), starts, counts, layout)
    processed = process_target(scored, rows, draft)
    if lossy is not None and warp is not None and chance is not None:
        found = judge_lossy(lossy, rows, processed, draft, warp, chance, keep_chances=keep_chances)
    elif draft.trees is None:
        found = judge(processed, draft, warp, chance, keep_chances=keep_chances)
    else:
        found = judge_trees(processed.table(draft.size + 1), rows, draft, warp, chance, keep_chances=keep_chances)
    if found.paths is not None:
        target.cache.close_up(starts, [(i, *move) for i, path in enumerate(found.paths) for move in moves(path)])
    return scored, found
