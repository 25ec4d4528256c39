"""Rejection sampling of drafted tokens, as pure functions.

Leviathan et al. (2023) and Appendix A.1 of Online Speculative Decoding: a token y drafted from q is kept with
probability min(1, p(y) / q(y)); at the first refusal the target's own token is drawn from
norm(max(0, p − q)), and after a fully kept draft from p (Eq. 5). What comes out is distributed exactly as p.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from osd.verification.warping import draw


def accept_greedy(choices: Sequence[int], drafted: Sequence[int], length: int) -> tuple[int, int]:
    """Accept a row's drafted tokens as long as they are the target's own first choice (temperature 0).

    choices (G + 1): the target's argmax at each position; drafted (G), of which ``length`` count. Returns how many are
    accepted and the target's token that follows. Runs on the host, where both are wanted in any case: every operation
    on tensors takes longer than the row.
    """
    kept = 0
    while kept < length and choices[kept] == drafted[kept]:
        kept += 1
    return kept, choices[kept]


def accept_sampled(
    p: Tensor, q: Tensor, drafted: Tensor, lengths: Tensor, chance: Tensor, last_chance: Tensor
) -> tuple[Tensor, Tensor]:
    """Accept drafted tokens by rejection sampling (Eq. 5 of OSD).

    p (B, G + 1, V) and q (B, G, V): probabilities after warping; drafted (B, G) ~ q; lengths (B,);
    chance (B, G) and last_chance (B,): independent uniforms in [0, 1). Returns accepted (B,) and the
    token that follows (B,).
    """
    index = drafted.unsqueeze(-1)
    likely, proposed = p[:, :-1].gather(2, index).squeeze(2), q.gather(2, index).squeeze(2)
    kept = _leading(chance * proposed < likely, lengths)
    rows = torch.arange(len(kept), device=kept.device)
    p_next = p[rows, kept]
    return kept, draw(_after(p_next, q, kept, lengths, rows), last_chance)


def acceptance_chance(p: Tensor, q: Tensor, drafted: Tensor) -> Tensor:
    """Return min(1, p(y) / q(y)) for each drafted token y: the chance with which it is kept once those before it were
    (section 4.3 of SpecDec++).

    p (B, G + 1, V), q (B, G, V), drafted (B, G) ~ q → (B, G); NaN where nothing could be drafted.
    """
    index = drafted.unsqueeze(-1)
    likely, proposed = p[:, :-1].gather(2, index).squeeze(2), q.gather(2, index).squeeze(2)
    return (likely / proposed).clamp_(max=1.0)


def expected_acceptance(p: Tensor, q: Tensor) -> Tensor:
    """Return Σ_v min(p(v), q(v)) over the last dimension: the chance that a token drafted from q is accepted.

    It is 1 − the total variation distance between p and q.
    """
    return torch.minimum(p, q).sum(-1)


def _leading(good: Tensor, lengths: Tensor) -> Tensor:
    """Count the tokens from the first on that are good, at most ``lengths``: (B, G) bool → (B,)."""
    counts = torch.arange(good.shape[1], device=good.device) < lengths.unsqueeze(1)
    return (good & counts).long().cumprod(1).sum(1)


def _after(p_next: Tensor, q: Tensor, kept: Tensor, lengths: Tensor, rows: Tensor) -> Tensor:
    """Return the distribution of the token after the kept ones, unnormalised: (B, V)."""
    if q.shape[1] == 0:
        return p_next
    residual = (p_next - q[rows, kept.clamp(max=q.shape[1] - 1)]).clamp_(min=0)
    refused = (kept < lengths) & (residual.sum(-1) > 0)  # p = q up to rounding leaves nothing: then p itself
    return torch.where(refused.unsqueeze(1), residual, p_next)
