"""Losses and errors of acceptance predictions. Shapes: n drafted tokens; a logit x stands for the estimate
sigmoid(x)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

BINS = 15
"""Number of bins of the calibration error, as is usual."""


def weighted_bce(logits: Tensor, chances: Tensor, reject_weight: float) -> Tensor:
    """Return (n,) −P log P̂ − w_rej (1 − P) log(1 − P̂) with P̂ = sigmoid(logits): section 4.4 of SpecDec++, w_acc = 1.

    −log P̂ is softplus(−x) and −log(1 − P̂) is softplus(x), which neither overflows nor loses small numbers.
    """
    return chances * F.softplus(-logits) + reject_weight * (1 - chances) * F.softplus(logits)


def binary_kl(chances: Tensor, logits: Tensor) -> Tensor:
    """Return (n,) KL(P ‖ P̂) = P log(P ÷ P̂) + (1 − P) log((1 − P) ÷ (1 − P̂)): appendix D.3. It is BCE − entropy of
    P."""
    entropy = -torch.xlogy(chances, chances) - torch.xlogy(1 - chances, 1 - chances)
    return weighted_bce(logits, chances, 1.0) - entropy


def calibration_error(chances: Tensor, estimates: Tensor, bins: int = BINS) -> float:
    """Return Σ over bins of (its share of tokens) · |its mean probability − its mean estimate|; bins of equal width
    over the estimates in [0, 1]."""
    place = (estimates * bins).long().clamp(0, bins - 1)
    gaps = torch.zeros(bins, dtype=torch.double).index_add_(0, place, (chances - estimates).double())
    return float(gaps.abs().sum() / len(chances))
