"""A draft vocabulary that follows the traffic: the tokens that its requests use most (``learn.draft_vocabulary``).

Most of a small draft's cost is its output layer. Which tokens it covers is chosen anew for each version, from the
newest requests of the draft's routes: those that answers used most; then those that their prompts did, for answers
repeat their prompts; then those with the lowest numbers, which tokenizers of byte pairs found to be most frequent. The
layer itself is the target's, so another choice needs no training.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from osd.models.features.base import FeatureDraft
from osd.models.features.target import FeatureTarget
from osd.models.model import eos_ids
from storage.insights.usage import TokenUse, token_use
from storage.store import Store

REQUESTS = 4096
"""Newest requests whose tokens are counted."""


def follow_traffic(
    store: Store, draft: str, model: FeatureDraft, shared: FeatureTarget, size: int | None
) -> dict[str, Any]:
    """Let a draft propose the ``size`` tokens that its traffic uses most, or all for None; return what the run's result
    says of it. A draft that has an output layer of its own keeps it, with its vocabulary, where ``size`` is None."""
    if size is None or size >= shared.vocab_size:
        if model.token_map is not None and model.lm_head is None:
            model.set_vocabulary(None)
        return {}
    use = token_use(store, draft, shared.vocab_size, REQUESTS)
    chosen = most_used(use, size, eos_ids(shared.module))
    model.set_vocabulary(torch.from_numpy(chosen))
    total = int(use.answers.sum())
    covered = float(use.answers[chosen].sum()) / total if total else None
    return {"draft_vocabulary": len(chosen), "draft_vocabulary_covers": covered and round(covered, 6)}


def most_used(use: TokenUse, size: int, ends: frozenset[int]) -> npt.NDArray[np.int64]:
    """Return the ids (``size``,) of the tokens that are used most, ascending, the end tokens always among them."""
    count = len(use.answers)
    order = np.lexsort((np.arange(count), -use.prompts, -use.answers))
    known = [token for token in sorted(ends) if token < count]
    others = order[~np.isin(order, known)][: max(0, size - len(known))]
    return np.sort(np.concatenate([np.array(known, np.int64), others]))
