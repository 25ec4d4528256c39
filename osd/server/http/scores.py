"""The target's log-probabilities of emitted tokens, where somebody asked: at temperature 1, before any warping."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Scores(NamedTuple):
    """Of m tokens that a round emitted."""

    chosen: list[float]
    """(m,) of each token itself."""
    top_ids: list[list[int]]
    """(m, k) the likeliest tokens there, likeliest first."""
    top: list[list[float]]
    """(m, k)"""

    def then(self, later: Scores) -> Scores:
        """Of these tokens, and of those that came after them."""
        return Scores(self.chosen + later.chosen, self.top_ids + later.top_ids, self.top + later.top)


def score(logits: Tensor, tokens: Sequence[int], top: int) -> Scores:
    """From the target's logits (m, V) where each of the m tokens was decided; ``top`` is k."""
    logprobs = logits.float().log_softmax(-1)
    which = torch.tensor(tokens, device=logprobs.device).unsqueeze(1)
    values, ids = logprobs.topk(min(top, logprobs.shape[-1]), dim=-1)
    return Scores(logprobs.gather(1, which).squeeze(1).tolist(), ids.tolist(), values.tolist())
