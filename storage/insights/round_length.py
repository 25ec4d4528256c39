"""How many tokens a round of speculative decoding brings, and what a better draft saves of its time.

A round that drafts γ tokens, each accepted with chance α, brings L(α) = 1 + α + … + α^γ tokens (Leviathan et al.,
Equation 1) and takes as long whatever α is. γ may be a mean, and then need not be whole.
"""

from __future__ import annotations

import math


def tokens_per_round(alpha: float, gamma: float) -> float:
    """Return L(α) = (1 − α^{γ+1}) ÷ (1 − α), the expected tokens of a round, the target's included."""
    if alpha >= 1:
        return gamma + 1
    if alpha <= 0:
        return 1.0
    return math.expm1((gamma + 1) * math.log(alpha)) / (alpha - 1)


def saved_share(alpha: float, gamma: float) -> float:
    """Return L′(α) ÷ L(α), the share of decoding time that a unit of acceptance saves at the margin."""
    if alpha >= 1:
        return gamma / 2
    length = tokens_per_round(alpha, gamma)
    return (length - (gamma + 1) * math.pow(alpha, gamma)) / (1 - alpha) / length
