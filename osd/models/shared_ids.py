"""The ids that a target and a draft share, where their vocabularies are not quite the same."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

NEVER = -1e30
"""Logit of what is not drafted. Finite, so that a row of which nothing else is allowed still has a distribution."""


@dataclass(frozen=True, slots=True, eq=False)
class SharedIds:
    """The ids of a target, V of them, as a draft takes them whose vocabulary is another in some places."""

    stand_ins: Tensor
    """(V,) int64: the id that the draft is fed for each; another where it does not know the token, or has no row."""
    barred: Tensor
    """(n,) int64: ids that only one of the two knows. They are never drafted."""

    def bar(self, logits: Tensor) -> Tensor:
        """Give the barred ids no probability, in logits (…, V) of the draft."""
        if not len(self.barred):
            return logits
        return logits.index_fill(-1, self.barred, max(NEVER, torch.finfo(logits.dtype).min))
