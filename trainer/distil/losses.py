"""Distances between draft and target, at positions where the target's top-k log-probabilities were stored.

Shapes: m positions, k stored tokens, v tokens of the draft's vocabulary, c outcomes.

Of the target's distribution p, the k likeliest tokens and the mass outside them are stored. Every
loss here is therefore taken on the *coarsening* of p and q to c = k + 1 outcomes: each stored token, and
"any other token". The draft's q is known in full, so its coarsening is exact. Merging outcomes never
raises an f-divergence, so each loss is a lower bound of its full-vocabulary value, and equals it when
k = v (then c = k and there is no outcome outside).

All are the distances D of Eqs. 2 to 4 of the OSD paper; the caller takes the mean over positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

Distance = Callable[[Tensor, Tensor], Tensor]

LABELS = "cross_entropy"
"""The loss that takes no distribution."""
LOWEST_LOGPROB = -65504.0
"""float16's least finite number, which replaces a stored −∞ so that no loss is infinite."""
LEAST_OUTSIDE = 2.0**-24
"""The smallest float32 mass distinguishable from none, which replaces an outside mass of 0 for the same reason."""


def target_log_probs(topk_logprobs: Tensor, outside: Tensor, vocab_size: int, temperature: float = 1.0) -> Tensor:
    """Return log p of the coarsened target at temperature τ, (m, c), from (m, k) log-probabilities and (m,) mass
    outside.

    p_τ(v) ∝ p(v)^(1/τ). For stored tokens that is exact. The tokens outside are known only by their sum o, so
    they are taken as equally likely, o / (v − k) each, and their tempered mass is (v − k)·(o / (v − k))^(1/τ).
    At τ = 1 this is o itself, whatever the tokens are; at τ > 1 it is the most that they can weigh, at
    τ < 1 the least (Jensen). Renormalised, which also removes the rounding of float16.
    """
    kept = topk_logprobs.clamp(min=LOWEST_LOGPROB) / temperature
    rest = vocab_size - topk_logprobs.shape[1]
    if rest <= 0:
        return kept.log_softmax(dim=1)
    each = outside.clamp(min=LEAST_OUTSIDE).log() - math.log(rest)
    return torch.cat([kept, (each / temperature + math.log(rest)).unsqueeze(1)], dim=1).log_softmax(dim=1)


def draft_log_probs(logits: Tensor, topk_ids: Tensor, temperature: float = 1.0) -> Tensor:
    """Return log q of the coarsened draft at temperature τ, (m, c), from (m, v) logits and the (m, k) stored ids.

    The outcome outside is logsumexp over the v − k other logits, not 1 − Σ q: it keeps its precision when the
    draft agrees with the target and almost nothing is left.
    """
    scaled = logits if temperature == 1.0 else logits / temperature
    if topk_ids.shape[1] >= logits.shape[1]:
        return scaled.gather(1, topk_ids).log_softmax(dim=1)
    coarse: Tensor = _CoarseLogits.apply(scaled, topk_ids)  # type: ignore[no-untyped-call]
    return coarse.log_softmax(dim=1)


def fitted(log_probs: Tensor, vocab_size: int) -> Tensor:
    """Return whole distributions (m, V) over a draft's ids, (m, v): ids that only one of them knows are padding, which
    says nothing."""
    more = vocab_size - log_probs.shape[1]
    return F.pad(log_probs, (0, more), value=LOWEST_LOGPROB) if more > 0 else log_probs[:, :vocab_size]


class _CoarseLogits(torch.autograd.Function):
    """A coarsening of (m, v) logits by (m, k) ids to (m, k + 1): the gathered logits, and logsumexp of all the others.

    Written by hand, because the plain form (scatter −∞, logsumexp) passes over (m, v) twice as often,
    and that is most of the cost of training a small draft.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, topk_ids: Tensor) -> Tensor:
        rest = logits.scatter(1, topk_ids, -math.inf)
        peak = rest.amax(dim=1, keepdim=True)
        weights = rest.sub_(peak).exp_()
        total = weights.sum(dim=1, keepdim=True)
        ctx.save_for_backward(weights, total, topk_ids)
        return torch.cat([logits.gather(1, topk_ids), total.log() + peak], dim=1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        weights, total, topk_ids = ctx.saved_tensors
        spread = weights * (grad[:, -1:] / total)  # softmax over the others; 0 at the stored ids
        return spread.scatter_(1, topk_ids, grad[:, :-1]), None


def forward_kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return (m,) D_KL(p ‖ q) = Σ p (log p − log q), from (m, c) each. Eq. 3."""
    return (log_p.exp() * (log_p - log_q)).sum(dim=1)


def reverse_kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return (m,) D_KL(q ‖ p) = Σ q (log q − log p). Eq. 3."""
    return forward_kl(log_q, log_p)


def jsd(log_p: Tensor, log_q: Tensor, beta: float = 0.5) -> Tensor:
    """Return (m,) JSD[β] = β D_KL(p ‖ p_β) + (1 − β) D_KL(q ‖ p_β) with p_β = β p + (1 − β) q, 0 < β < 1. Eq. 3."""
    mixture = torch.logaddexp(log_p + math.log(beta), log_q + math.log1p(-beta))
    return beta * forward_kl(log_p, mixture) + (1 - beta) * forward_kl(log_q, mixture)


def total_variation(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return (m,) ½ Σ |p − q| = 1 − Σ min(p, q): the chance that a token drawn from the coarsened q is rejected."""
    return 0.5 * (log_p.exp() - log_q.exp()).abs().sum(dim=1)


def cross_entropy(logits: Tensor, tokens: Tensor) -> Tensor:
    """Return (m,) −log q(y) of the emitted tokens y (m,), from (m, v) logits: plain fine-tuning on labels, which the
    paper calls FT. Of the target's distribution it uses nothing."""
    return F.cross_entropy(logits, tokens, reduction="none")


def distance(name: str, jsd_beta: float = 0.5) -> Distance:
    """Return the distance that ``learn.loss`` names: a function of log p and log q, (m, c) each, to (m,)."""
    known: dict[str, Distance] = {
        "forward_kl": forward_kl,
        "reverse_kl": reverse_kl,
        "jsd": lambda log_p, log_q: jsd(log_p, log_q, jsd_beta),
        "total_variation": total_variation,
    }
    return known[name]
