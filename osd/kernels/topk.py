"""Top-k kernel: the likeliest tokens of rows of logits, in one call, one thread, without the interpreter.

    class maxima → a threshold that at least k of them reach → the logits that reach it → their order → log Σ exp

A row's V logits are dealt to W classes, token i to class i mod W. The k largest logits are at least as large as
the k-th largest class maximum, so whatever lies below that cannot be among them; of a language model's logits some
k + k²/2W reach it, which are cheap to put in order. This takes about 4 µs for V = 6,144 and k = 64, where PyTorch's
log_softmax and topk take 16; the plain version is :func:`osd.recording.topk.reduce_plain`.

Importing this module imports Numba, which takes a moment, and the first call compiles, which takes longer; Numba
keeps the result beside the byte code. :class:`osd.recording.topk.Reducer` does both off the decoding path.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from numba import carray, njit

from osd.kernels.arithmetic import Floats, exp, floats_at, half, largest, one, reaching, sum_exp
from osd.kernels.code_cache import kept

Ints = npt.NDArray[np.int32]
Index = npt.NDArray[np.int64]

CLASSES = 512
"""W: a power of two, so that a class is a lane of the vector registers."""
FEW = 256
"""Candidates up to which counting the larger ones beats sorting."""
LOWEST = np.float32(np.finfo(np.float32).min)


@njit
def class_maxima(row: Floats, best: Floats) -> None:
    """Set best[j] ← the largest of row[j], row[j + W], …; −inf where there is none."""
    whole = len(row) // CLASSES * CLASSES
    for j in range(CLASSES):
        best[j] = -np.inf
    for start in range(0, whole, CLASSES):
        part = row[start : start + CLASSES]
        for j in range(CLASSES):
            best[j] = max(best[j], part[j])
    for j in range(len(row) - whole):
        best[j] = max(best[j], row[whole + j])


@njit
def threshold_of(best: Floats, k: int) -> np.float32:
    """Find a number that at least k of the class maxima reach, and few more, by halving an interval; a number below all
    finite logits where fewer than k classes have one."""
    low, high = np.float32(np.inf), np.float32(-np.inf)
    for i in range(len(best)):
        x = best[i]
        high = max(high, x)
        low = min(low, x if x > -np.inf else np.float32(np.inf))
    if reaching(best, low) < k:
        return LOWEST
    middle = half * low + half * high
    while low < middle < high:
        count = reaching(best, middle)
        if count < k:
            high = middle
        else:
            low = middle
            if count <= k + 3:
                break
        middle = half * low + half * high
    return low


@njit
def candidates(row: Floats, best: Floats, threshold: np.float32, values: Floats, ids: Ints) -> int:
    """Collect the logits that reach the threshold and their tokens; return how many there are."""
    count = 0
    for j in range(min(CLASSES, len(row))):
        if best[j] >= threshold:
            for i in range(j, len(row), CLASSES):
                if row[i] >= threshold:
                    values[count] = row[i]
                    ids[count] = i
                    count += 1
    return count


@njit
def narrow(values: Floats, tokens: Ints, count: int, k: int) -> int:
    """Keep about k of many candidates: those above the k-th largest, and of those equal to it the first; return how
    many."""
    least = threshold_of(values[:count], k)
    spare = k
    for a in range(count):
        spare -= int(values[a] > least)
    kept = 0
    for a in range(count):
        tied = values[a] == least
        if values[a] > least or (tied and spare > 0):
            spare -= int(tied)
            values[kept], tokens[kept] = values[a], tokens[a]
            kept += 1
    return kept


@njit
def rank(values: Floats, count: int, ranks: Ints) -> None:
    """Set ranks[a] ← how many of the values are larger than values[a]. Room for 16 more than ``count`` is needed."""
    blocks = (count + 15) // 16
    for a in range(count, blocks * 16):
        values[a] = -np.inf
    for a in range(count):
        larger = np.int32(0)
        for c in range(blocks * 16):
            larger += np.int32(values[c] > values[a])
        ranks[a] = larger


@njit
def place(values: Floats, tokens: Ints, ranks: Ints, count: int, ids: Ints, kept: Floats) -> None:
    """Move candidates to their places, likeliest first; equal ones, which share a rank, one after another."""
    for j in range(len(ids)):
        ids[j] = -1
    for a in range(count):
        at = ranks[a]
        while at < len(ids) and ids[at] >= 0:
            at += 1
        if at < len(ids):
            ids[at], kept[at] = tokens[a], values[a]


@njit
def fill(row: Floats, found: int, ids: Ints, kept: Floats) -> None:
    """Fill places left over where too few logits are finite with the first tokens of the others."""
    token = 0
    for j in range(found, len(ids)):
        while row[token] > -np.inf:
            token += 1
        ids[j], kept[j] = token, -np.inf
        token += 1


@njit
def settle(kept: Floats, peak: np.float32, log_total: np.float32) -> np.float32:
    """Turn logits into log-probabilities, less log Σ exp = ``peak`` + ``log_total``; return the mass outside them."""
    for j in range(len(kept)):
        kept[j] = kept[j] - peak - log_total  # in this order: a large peak would swallow the other
    mass = np.float32(0)
    for j in range(len(kept)):
        mass += exp(kept[j])
    return max(np.float32(0), one - mass)


@njit
def spoil(ids: Ints, kept: Floats) -> None:
    """Mark a row that is no distribution: log-probabilities of NaN."""
    for j in range(len(ids)):
        ids[j], kept[j] = j, np.nan


@kept
def reduce_rows(addresses: Index, width: int, ids: Ints, logprobs: Floats, outside: Floats) -> None:
    """Reduce rows of V = ``width`` logits that begin at these addresses (m,).

    Sets their k likeliest tokens (m, k), likeliest first, natural log-probabilities (m, k) and the mass outside (m,).
    k ≤ V. A row that holds NaN or +inf, or nothing finite, comes out as NaN. Addresses, because rows of several passes
    are reduced in one call.
    """
    room, k = width + 16, ids.shape[1]
    best, values = np.empty(CLASSES, np.float32), np.empty(room, np.float32)
    tokens, ranks = np.empty(room, np.int32), np.empty(room, np.int32)
    for m in range(len(addresses)):
        row = carray(floats_at(addresses[m]), (width,))
        class_maxima(row, best)
        peak = largest(best)
        total = sum_exp(row, peak)
        if not total < np.inf:
            spoil(ids[m], logprobs[m])
            outside[m] = np.nan
            continue
        count = candidates(row, best, threshold_of(best, k), values, tokens)
        if count > FEW:
            count = narrow(values, tokens, count, k)
        rank(values, count, ranks)
        place(values, tokens, ranks, count, ids[m], logprobs[m])
        fill(row, count, ids[m], logprobs[m])
        outside[m] = settle(logprobs[m], peak, np.float32(math.log(total)))
