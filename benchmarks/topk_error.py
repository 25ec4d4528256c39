"""What keeping k of V probabilities costs: bounds from what is kept, and the error itself where all of p is known.

Kept at a position are the k largest probabilities p_1 ≥ … ≥ p_k of the target and o = 1 − Σ p_i. Training and the gate
know the draft's q in full. Of p at temperature τ, p_τ(v) ∝ p(v)^(1/τ), they know the kept tokens' ratios; the tempered
mass outside, Z = Σ_out p^(1/τ), is taken as if its N = V − k tokens were equally likely
(:func:`trainer.distil.losses.target_log_probs`). With 0 ≤ p(v) ≤ p_k and Σ_out p(v) = o, x^(1/τ) being concave or
convex puts Z between N (o/N)^(1/τ) and what the fewest tokens would weigh, each as likely as the last kept. So the
share outside, O = Z / (Z_kept + Z), has two known ends, O₋ ≤ O ≤ O₊; Ô is what is assumed, and δ = max(O₊ − Ô, Ô −
O₋), which is 0 at τ = 1. Then, with Q = Σ_out q:

* |Σ_v min(p, q) − Σ_kept min(p̂, q)| ≤ δ + min(O₊, Q), for kept probabilities differ by δ in sum and what is outside
  adds at most the smaller of the two masses;
* ‖∇L − ∇L̂‖₁ ≤ (δ + O₊ + Ô) / τ for L = KL(p ‖ q) and the gradient by the draft's logits, (q − p) / τ: outside it is
  taken as q − Ô q/Q;
* |KL − K̂L| ≤ max |f(O) − f(Ô)| + O₊ (ln c − ln (min_out q / Q))₊ with c = min(1, p_k^(1/τ) / Z₋). f(O) is the
coarsened
  KL as a function of the share outside: convex, so its extremes are at O₋, O₊ or its own minimum. The rest is the KL
  within the outside, O · KL(p_out/O ‖ q_out/Q) by the chain rule: no p there is above c, and no q below its least.

The first is also at most 1, and the second at most 2 / τ.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
TINY = 1e-300


@dataclass(frozen=True, slots=True, eq=False)
class TopKError:
    """Errors of keeping k probabilities, at m positions each; in nats for KL."""

    overlap: Array
    """(m,) error in Σ min(p, q), the expected acceptance."""
    kl: Array
    """(m,) error in KL(p ‖ q)."""
    gradient: Array
    """(m,) error in the gradient of KL by the draft's logits, summed absolutely."""


@dataclass(frozen=True, slots=True, eq=False)
class Ends:
    """What is known of the share outside, (m,) each: bounds, and what is assumed."""

    low: Array
    high: Array
    assumed: Array
    cap: Array
    """Largest share of the outside's mass that a token there can have."""

    @property
    def off(self) -> Array:
        """δ: the most that the assumed share is off."""
        return np.maximum(self.high - self.assumed, self.assumed - self.low)


def ends_outside(kept: Array, outside: Array, vocabulary: int, temperature: float = 1.0) -> Ends:
    """Bound the share outside at a temperature, from kept probabilities (m, k), the largest first, and the mass outside
    (m,), both at temperature 1."""
    power, rest = 1 / temperature, max(vocabulary - kept.shape[1], 1)
    inside = (kept**power).sum(1)
    least = np.maximum(kept[:, -1], outside / rest)  # rounding may leave more outside than fits below the last kept
    even = rest * (outside / rest) ** power
    full = np.floor(outside / np.maximum(least, TINY))
    packed = full * least**power + np.maximum(outside - full * least, 0) ** power
    if temperature == 1.0:
        even = packed = outside
    low, high = np.minimum(even, packed), np.maximum(even, packed)
    cap = np.minimum(1.0, least**power / np.maximum(low, TINY))
    return Ends(low / (inside + low), high / (inside + high), even / (inside + even), cap)


def bound(kept: Array, outside: Array, q: Array, ids: npt.NDArray[np.integer], temperature: float = 1.0) -> TopKError:
    """Return the bounds above. ``q`` (m, V) is the draft's at this temperature, ``ids`` (m, k) the kept tokens."""
    ends = ends_outside(kept, outside, q.shape[1], temperature)
    beyond = _without(q, ids)
    total = beyond.sum(1)
    least = np.where(beyond > 0, beyond, np.inf).min(1)
    spread = np.log(ends.cap) - np.log(np.where(np.isfinite(least), least, 1.0) / np.maximum(total, TINY))
    share = kept ** (1 / temperature) / (kept ** (1 / temperature)).sum(1, keepdims=True)
    moved = _moved(share, np.take_along_axis(q, ids, 1), total, ends)
    return TopKError(
        overlap=np.minimum(ends.off + np.minimum(ends.high, total), 1.0),
        kl=moved + ends.high * np.maximum(spread, 0),
        gradient=np.minimum(ends.off + ends.high + ends.assumed, 2.0) / temperature,
    )


def measure(p: Array, q: Array, k: int, temperature: float = 1.0) -> TopKError:
    """Return the errors themselves: p (m, V) at temperature 1 is known in full, q (m, V) is at this temperature."""
    ids = np.argsort(-p, axis=1, kind="stable")[:, :k]
    kept = np.take_along_axis(p, ids, 1)
    assumed = ends_outside(kept, _without(p, ids).sum(1), p.shape[1], temperature).assumed
    full = p ** (1 / temperature)
    full = full / full.sum(1, keepdims=True)
    share = kept ** (1 / temperature)
    guessed = (1 - assumed)[:, None] * share / share.sum(1, keepdims=True)
    at, beyond = np.take_along_axis(q, ids, 1), _without(q, ids)
    total = np.maximum(beyond.sum(1), TINY)
    guess = assumed[:, None] * beyond / total[:, None]
    np.put_along_axis(guess, ids, guessed, 1)
    return TopKError(
        overlap=abs(np.minimum(full, q).sum(1) - np.minimum(guessed, at).sum(1)),
        kl=abs(_kl(full, q) - _kl(guessed, at) - _kl(assumed[:, None], total[:, None])),
        gradient=abs(full - guess).sum(1) / temperature,
    )


def smallest_k(kept: Array, outside: Array, error: float) -> int | None:
    """Return the least k at which the mean mass outside is at most ``error``; None where even all that is kept leaves
    more.

    That mass bounds the error in Σ min(p, q) at τ = 1 whatever the draft is. ``kept`` (m, k) likeliest first.
    """
    beyond = outside.mean() + kept.mean(0)[::-1].cumsum()[::-1]
    left = np.append(beyond[1:], outside.mean())
    enough = np.flatnonzero(left <= error)
    return int(enough[0]) + 1 if len(enough) else None


def _moved(share: Array, at: Array, total: Array, ends: Ends) -> Array:
    """Return the most that f(O) differs from f(Ô)."""
    inner = _kl(share, at / np.maximum(1 - total, TINY)[:, None])

    def f(outside: Array) -> Array:
        two = np.stack([1 - outside, outside], 1)
        return np.asarray((1 - outside) * inner + _kl(two, np.stack([1 - total, total], 1)))

    ratio = total / np.maximum(1 - total, TINY) * np.exp(np.minimum(inner, 700))
    lowest = np.clip(ratio / (1 + ratio), ends.low, ends.high)
    here = f(ends.assumed)
    return np.asarray(np.max([abs(f(end) - here) for end in (ends.low, ends.high, lowest)], axis=0))


def _kl(p: Array, q: Array) -> Array:
    """Return Σ p ln(p / q), with 0 ln 0 = 0; the sums need not be 1: (m,)."""
    ratio = np.log(np.maximum(p, TINY)) - np.log(np.maximum(q, TINY))
    return np.asarray(np.where(p > 0, p * ratio, 0.0).sum(1))


def _without(values: Array, ids: npt.NDArray[np.integer]) -> Array:
    left = values.copy()
    np.put_along_axis(left, ids, 0.0, 1)
    return left
