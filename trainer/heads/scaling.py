"""Platt scaling of a trained head's logits on its training data.

    x ← s x + b       s, b minimise the mean of −P log σ(x) − (1 − P) log(1 − σ(x)) over the tokens

Trained with rejections that weigh w_rej times, a head that cannot separate all probabilities gives way where that costs
least, and undoing the weight does not undo this. Two numbers do, and they go into the output layer, so that a head's
file format is unchanged.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from osd.models.acceptance_head import AcceptanceHead
from trainer.heads.examples import Examples
from trainer.heads.losses import weighted_bce

_STEPS = 12
"""Newton steps (each doubles the digits), and halvings of a step."""
_AS_IT_IS = 16.0
"""Tokens of weight given to the identity, so that few tokens do not determine the slope."""


@torch.no_grad()
def rescale(head: AcceptanceHead, examples: Examples) -> tuple[float, float]:
    """Fold s and b into the head's output layer, and return them; (1, 0) where that is no gain."""
    logits, chances = head.estimate(examples.embeddings).double(), examples.chances.double()
    slope, level = best_line(logits, chances)
    before, after = (float(weighted_bce(x, chances, 1.0).mean()) for x in (logits, slope * logits + level))
    if not (slope > 0 and after < before):
        return 1.0, 0.0
    undone = math.log(head.config.reject_weight)  # the head's estimate subtracts it, so it is added again
    head.out.weight.mul_(slope)
    head.out.bias.add_(undone).mul_(slope).add_(level - undone)
    return slope, level


def best_line(logits: Tensor, chances: Tensor) -> tuple[float, float]:
    """Return (s, b) for logits and chances (n,), float64, by Newton steps that are halved where they would go
    uphill."""
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
            break  # nothing is lower: converged
    return float(found[0]), float(found[1])
