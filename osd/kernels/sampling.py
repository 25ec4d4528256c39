"""Sampling kernels: argmax, a draw from warped logits, and rejection sampling of drafts, each in one call.

:mod:`osd.verification.warping` and :mod:`osd.verification.rejection_sampling` do the same with some ten operations a
draw and thirty a verification, each of which costs PyTorch a few µs however little it computes. Shapes: B rows, G
drafted tokens, V vocabulary. Which tokens are cut off is found without sorting: the bits of floats that are not
negative are in their order, so the least that is kept is found by halving.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from osd.kernels.arithmetic import (
    LANES,
    WITHOUT_CHECKS,
    Floats,
    exp,
    first_at,
    largest,
    least_exponent,
    one,
    reaching,
    sum_exp,
    zero,
)
from osd.kernels.code_cache import holding
from osd.kernels.llama import score, sigmoid

Doubles = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]
Bits = npt.NDArray[np.int32]

BLOCK = 128
"""Tokens whose mass is summed before it is known which of them is drawn."""
TEMPERATURE, TOP_K, TOP_P, MIN_P = 0, 1, 2, 3
"""Columns of a row's settings; see :class:`osd.verification.warping.Warp`."""


@njit(fastmath=LANES)
def mass(p: Floats) -> float:
    """Compute Σ p, in lanes."""
    total = 0.0
    for i in range(len(p)):
        total += np.float64(p[i])
    return total


@njit(fastmath=LANES)
def mass_from(p: Floats, bits: Bits, least: np.int32) -> float:
    """Compute Σ p over those of at least these bits."""
    total = 0.0
    for i in range(len(p)):
        total += np.float64(p[i] if bits[i] >= least else zero)
    return total


@njit
def measure(p: Floats, bits: Bits, least: np.int32, counts: bool) -> float:
    """Return the number or mass of those of at least these bits."""
    return float(reaching(bits, least)) if counts else mass_from(p, bits, least)


@njit
def cut(p: Floats, goal: float, counts: bool) -> None:
    """Keep of p (V,), none below 0, the likeliest whose number or mass reaches ``goal``, as few as that takes; among
    equal ones the first. The others become 0."""
    bits = p.view(np.int32)
    low, high = np.int32(1), np.int32(np.iinfo(np.int32).max)
    if measure(p, bits, low, counts) <= goal:
        return
    while high - low > 1:  # those from ``low`` on reach the goal, those from ``high`` on do not
        middle = low + (high - low) // np.int32(2)
        if measure(p, bits, middle, counts) >= goal:
            low = middle
        else:
            high = middle
    left = goal - measure(p, bits, high, counts)
    for i in range(len(p)):
        if bits[i] < low or (bits[i] == low and left <= 0.0):
            p[i] = zero
        elif bits[i] == low:
            left -= 1.0 if counts else p[i]


@njit
def cut_below(p: Floats, least: np.float32) -> None:
    """Set what of p (V,) is less than ``least`` to 0."""
    for i in range(len(p)):
        if p[i] < least:
            p[i] = zero


@njit
def scale(p: Floats, factor: np.float32) -> None:
    """Multiply all of p by a factor."""
    for i in range(len(p)):
        p[i] *= factor


@njit(**WITHOUT_CHECKS)
def soften(logits: Floats, temperature: np.float32, p: Floats) -> None:
    """Set p (V,) ← softmax(logits ÷ temperature); below e⁻⁸⁷ of the largest it is 0."""
    peak, over, total = largest(logits), one / temperature, zero
    for i in range(len(logits)):
        x = (logits[i] - peak) * over
        p[i] = exp(x) if x > least_exponent else zero
        total += p[i]
    scale(p, one / total)


@njit
def harden(logits: Floats, p: Floats) -> None:
    """Set p (V,) ← 1 for the first of the largest, 0 for the others."""
    p[:] = zero
    p[first_at(logits, largest(logits))] = one


@njit(error_model="numpy")
def warp(logits: Floats, settings: Doubles, p: Floats) -> None:
    """Set p (V,) ← the warped distribution of :class:`osd.verification.warping.Warp`, by one row's ``settings``."""
    if settings[TEMPERATURE] == 0.0:
        harden(logits, p)
        return
    soften(logits, np.float32(settings[TEMPERATURE]), p)
    few, part, likely = settings[TOP_K] < len(p), settings[TOP_P] < 1.0, settings[MIN_P] > 0.0
    if few:
        cut(p, settings[TOP_K], True)
    if part:
        cut(p, settings[TOP_P] * mass(p), False)
    if likely:
        cut_below(p, np.float32(settings[MIN_P]) * largest(p))
    if few or part or likely:
        scale(p, np.float32(1.0 / mass(p)))


@njit
def pick(p: Floats, chance: float) -> int:
    """Return the token that ``chance``, in [0, 1), draws from masses p (V,), as :func:`osd.verification.warping.draw`;
    none of mass 0, unless all are."""
    masses = np.empty((len(p) + BLOCK - 1) // BLOCK)
    for b in range(len(masses)):
        masses[b] = mass(p[b * BLOCK : (b + 1) * BLOCK])
    goal, before, block, found = chance * masses.sum(), 0.0, 0, -1
    while block < len(masses) - 1 and before + masses[block] <= goal:
        before += masses[block]
        block += 1
    for i in range(block * BLOCK, min(len(p), (block + 1) * BLOCK)):
        if p[i] > zero:
            found = i
            before += p[i]
            if before > goal:
                break
    if found < 0:  # by rounding it is beyond the last
        found = len(p) - 1
        while found > 0 and not p[found] > zero:
            found -= 1
    return found


@njit(fastmath=LANES)
def common(p: Floats, q: Floats) -> np.float32:
    """Compute Σ min(p, q), in lanes."""
    total = zero
    for i in range(len(p)):
        total += min(p[i], q[i])
    return total


@njit(error_model="numpy")
def ratio(p: np.float32, q: np.float32) -> np.float32:
    """Compute min(1, p ÷ q)."""
    return min(one, p / q)


@njit
def refused(p: Floats, q: Floats, chance: float, rest: Floats) -> int:
    """Draw what follows instead of a refused token from max(0, p − q), or from p where rounding leaves nothing of that.
    ``rest`` (V,) is overwritten."""
    for i in range(len(p)):
        rest[i] = max(p[i] - q[i], zero)
    return pick(rest if mass(rest) > 0.0 else p, chance)


@holding
def likeliest(logits: Floats, choices: Index) -> None:
    """Set choices (N,) ← the argmax of logits (N, V), the first one where several are largest."""
    for n in range(len(logits)):
        choices[n] = first_at(logits[n], largest(logits[n]))


@holding
def draw(logits: Floats, settings: Doubles, chances: Doubles, step: int, q: Floats, chosen: Index) -> None:
    """Set q (B, V) ← the warped distributions of logits (B, V) by settings (B, 4); chosen (B,) ← what column ``step``
    of ``chances`` draws from them."""
    for row in range(len(logits)):
        warp(logits[row], settings[row], q[row])
        chosen[row] = pick(q[row], chances[row, step])


@holding
def judge(
    logits: Floats, begins: Index, q: Floats, drafted: Index, lengths: Index, settings: Doubles, chances: Doubles,
    keep: bool, kept: Floats, shared: Floats, accepted: Index, follows: Index,
) -> None:  # fmt: skip
    """Apply rejection sampling, as :func:`osd.verification.rejection_sampling.accept_sampled`.

    Takes the target's logits (N, V), a row's from ``begins`` (B,) on, q (B, G, V) and drafted (B, G), of which
    ``lengths`` (B,) count, with ``chances`` (B, 2 H + 1) for H ≥ G: as many tests from H on, and the last for what
    follows. Sets accepted (B,), follows (B,); shared (B, G) ←
    :func:`osd.verification.rejection_sampling.expected_acceptance` at verified tokens; with ``keep``, kept (B, G) ←
    :func:`osd.verification.rejection_sampling.acceptance_chance` of drafted ones."""
    p, rest = np.empty(logits.shape[1], np.float32), np.empty(logits.shape[1], np.float32)
    for row in range(len(begins)):
        own = logits[begins[row] :]
        length, tests, last = lengths[row], chances.shape[1] // 2, chances[row, chances.shape[1] - 1]
        taken = length
        for i in range(length):
            token = drafted[row, i]
            warp(own[i], settings[row], p)
            if keep:
                kept[row, i] = ratio(p[token], q[row, i, token])
            if taken < length:
                continue
            shared[row, i] = common(p, q[row, i])
            if not chances[row, tests + i] * q[row, i, token] < p[token]:
                taken = i
                follows[row] = refused(p, q[row, i], last, rest)
                if not keep:
                    break
        if taken == length:
            warp(own[length], settings[row], p)
            follows[row] = pick(p, last)
        accepted[row] = taken


@njit
def child(parents: Index, marks: Index, node: int, mark: int) -> int:
    """Return the first child of ``node`` that has this mark, from 1 on; 0 where there is none."""
    for i in range(len(parents)):
        if parents[i] == node and marks[i] == mark:
            return i + 1
    return 0


@njit
def norm(weights: Floats) -> None:
    """Scale weights to a mass of 1; none stay none."""
    total = mass(weights)
    if total > 0.0:
        scale(weights, np.float32(1.0 / total))


@njit(error_model="numpy")
def try_drawn(
    r: Floats, q: Floats, node: int, tokens: Index, parents: Index, turns: Index, tests: Doubles
) -> tuple[int, np.float32]:
    """Try the drawn children of a node, one after another: the one that is kept, from 1 on, 0 for none; and the chance
    with which it, or the first, was to be kept. ``r`` and ``q`` (V,) become what is left of them."""
    chance = np.float32(np.nan)
    for turn in range(len(tests)):
        place = child(parents, turns, node, turn)
        if not place:
            break
        token = tokens[place - 1]
        passed = tests[turn] * q[token] < r[token]
        if passed or not turn:
            chance = ratio(r[token], q[token])
        if passed:
            return place, chance
        left = 0.0
        for i in range(len(r)):
            left += np.float64(max(r[i] - q[i], zero))
        if left > 0.0:  # p = q up to rounding leaves nothing: then r itself
            for i in range(len(r)):
                r[i] = max(r[i] - q[i], zero)
        q[token] = zero
        norm(r)
        norm(q)
    return 0, chance


@njit(error_model="numpy")
def step(
    r: Floats, q: Floats, node: int, tokens: Index, parents: Index, turns: Index, tests: Doubles, chance: float
) -> tuple[int, int, np.float32]:
    """Decide one node: the child that is kept, from 1 on, 0 for none; the token that was drawn in the end; and the
    probability with which the child that was accepted, or the first one, was to be; NaN where there was none. ``r``
    (V,): p there; ``q`` (V,): what its children were drawn from, empty where none was."""
    kept, probability = 0, np.float32(np.nan)
    if len(q):
        kept, probability = try_drawn(r, q, node, tokens, parents, turns, tests)
    if kept:
        return kept, 0, probability
    token, first = pick(r, chance), 0
    for i in range(len(parents)):
        if parents[i] == node:
            first = first if first else i + 1
            if tokens[i] == token:
                return i + 1, token, np.float32(r[token] / mass(r))
    if first and np.isnan(probability):
        probability = np.float32(r[tokens[first - 1]] / mass(r))
    return 0, token, probability


@holding
def judge_trees(
    logits: Floats, q: Floats, tokens: Index, parents: Index, turns: Index, settings: Doubles, tests: Doubles,
    draws: Doubles, path: Index, follows: Index, chances: Floats,
) -> None:  # fmt: skip
    """Accept paths of trees, as :func:`osd.verification.rejection_sampling_trees.accept_tree_sampled`.

    Takes the target's logits (B, N + 1, V), q (B, Q, V) where children were drawn, Q = 0 else, and the trees' tokens,
    parents and turns, (B, N) each, with tests (B, D + 1, T) and draws (B, D + 1). Sets path (B, D + 1), follows (B,)
    and chances (B, D + 1) as :class:`osd.verification.rejection_sampling_trees.TreeVerifyResult` has them; path and
    chances hold −1 and NaN before."""
    width = logits.shape[2]
    r, left = np.empty(width, np.float32), np.empty(width if q.shape[1] else 0, np.float32)
    for row in range(len(logits)):
        node, path[row, 0] = 0, 0
        for depth in range(draws.shape[1]):
            warp(logits[row, node], settings[row], r)
            if len(left):
                left[:] = q[row, min(node, q.shape[1] - 1)]
            node, token, chances[row, depth] = step(
                r, left, node, tokens[row], parents[row], turns[row], tests[row, depth], draws[row, depth]
            )
            if not node:
                follows[row] = token
                break
            path[row, depth + 1] = node


@njit(fastmath=LANES)
def accept(embedding: Floats, matrices: Floats, biases: Floats, out: Floats) -> np.float32:
    """Return the sigmoid of a SiLU ResNet's output for ``embedding`` (D,): layers ``matrices`` (L, D, D) and ``biases``
    (L, D), then ``out``, D weights and a bias."""
    hidden, part = embedding.copy(), np.empty_like(embedding)
    for k in range(len(matrices)):
        for o in range(len(part)):
            part[o] = score(matrices[k, o], hidden) + biases[k, o]
        for i in range(len(part)):
            hidden[i] += part[i] * sigmoid(part[i])
    return sigmoid(score(hidden, out) + out[len(hidden)])


@holding
def read_off(
    logits: Floats, embedding: Floats, matrices: Floats, biases: Floats, out: Floats,
    choices: Index, peaks: Floats, chances: Floats,
) -> None:  # fmt: skip
    """Find the first of the largest logits (B, V) of each row (B,), and its probability (B,); chances (B,) ← of
    ``embedding`` (B, D) see :func:`accept`, where ``out`` is not empty."""
    for b in range(len(logits)):
        most = largest(logits[b])
        choices[b], peaks[b] = first_at(logits[b], most), one / sum_exp(logits[b], most)
        if len(out):
            chances[b] = accept(embedding[b], matrices, biases, out)
