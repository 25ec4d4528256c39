"""The target's log-probabilities of tokens, where requested: at temperature 1, before any warping."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Scores(NamedTuple):
    """The log-probabilities of m tokens: those that a round emitted, or all of a prompt but its first."""

    chosen: list[float]
    """(m,) log-probability of each token."""
    top_ids: list[list[int]]
    """(m, k) likeliest token ids, likeliest first."""
    top: list[list[float]]
    """(m, k) log-probabilities of those."""
    ranks: list[int]
    """(m,) how many tokens are as likely as each or likelier, itself included."""

    def then(self, later: Scores) -> Scores:
        """Concatenate with the scores of later tokens."""
        return Scores(
            self.chosen + later.chosen, self.top_ids + later.top_ids, self.top + later.top, self.ranks + later.ranks
        )


def score(logits: Tensor, tokens: Sequence[int], top: int) -> Scores:
    """Compute scores from the target's logits (m, V) at the m tokens' positions; ``top`` is k."""
    logprobs = logits.float().log_softmax(-1)
    which = torch.tensor(tokens, device=logprobs.device).unsqueeze(1)
    values, ids = logprobs.topk(min(top, logprobs.shape[-1]), dim=-1)
    chosen = logprobs.gather(1, which)
    ranks = (logprobs >= chosen).sum(1)
    return Scores(chosen.squeeze(1).tolist(), ids.tolist(), values.tolist(), ranks.tolist())
