"""After training, a head's level and slope are set right on what it was trained on.

    x ← s x + b       s, b: least mean of −P log σ(x) − (1 − P) log(1 − σ(x)) over the tokens (Platt's scaling)

Trained with rejections that weigh w_rej times, a head that cannot tell all chances apart gives way where that costs
least, and undoing the weight does not undo this. Two numbers do, and they go into the output layer: a head's folder
stays what it is.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from osd.models.acceptance_head import AcceptanceHead
from trainer.heads.examples import Examples
from trainer.heads.losses import weighted_bce

_STEPS = 12
"""Of Newton's, each of which doubles the digits, and halvings of one."""
_AS_IT_IS = 16.0
"""Tokens that "it is right as it is" weighs: of a few no slope is believed."""


@torch.no_grad()
def rescale(head: AcceptanceHead, examples: Examples) -> tuple[float, float]:
    """Put s and b into the head's output layer, and return them; (1, 0) where that is no gain."""
    logits, chances = head.estimate(examples.embeddings).double(), examples.chances.double()
    slope, level = best_line(logits, chances)
    before, after = (float(weighted_bce(x, chances, 1.0).mean()) for x in (logits, slope * logits + level))
    if not (slope > 0 and after < before):
        return 1.0, 0.0
    undone = math.log(head.config.reject_weight)  # which estimate adds, and adds again
    head.out.weight.mul_(slope)
    head.out.bias.add_(undone).mul_(slope).add_(level - undone)
    return slope, level


def best_line(logits: Tensor, chances: Tensor) -> tuple[float, float]:
    """(s, b) for logits and chances (n,), float64: Newton's steps, halved where they would lead uphill."""
    columns, start = torch.stack([logits, torch.ones_like(logits)]), logits.new_tensor([1.0, 0.0])

    def loss(line: Tensor) -> Tensor:
        return weighted_bce(line @ columns, chances, 1.0).sum() + _AS_IT_IS / 2 * (line - start).square().sum()

    found, height = start, loss(start)
    for _ in range(_STEPS):
        said = (found @ columns).sigmoid()
        slope_of_loss = columns @ (said - chances) + _AS_IT_IS * (found - start)
        bend = (columns * (said * (1 - said))) @ columns.T + _AS_IT_IS * torch.eye(2, dtype=logits.dtype)
        step = torch.linalg.solve(bend, slope_of_loss)
        for _ in range(_STEPS):
            if (there := loss(found - step)) < height:
                found, height = found - step, there
                break
            step = step / 2
        else:
            break  # nothing is lower: this is the foot
    return float(found[0]), float(found[1])
