"""A Llama-type model over a few tokens: what stands between the products of a pass, and small layers in one call.

What the fused pass (:mod:`osd.models.llama_forward`) computes with some twenty operations a layer, each of which costs
PyTorch 3 to 10 µs however little it computes. Shapes: n lines (tokens, of any rows), D hidden, H and K heads of
queries and of keys, W a head's width, F feed-forward. All float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from osd.kernels.arithmetic import LANES, WITHOUT_CHECKS, Floats, exp, one, zero
from osd.kernels.code_cache import holding

Index = npt.NDArray[np.int64]
Tuple = tuple[Any, ...]

BLOCK = 512
"""Sums of a line that are made side by side: they and the weights that they need next stay in the first cache."""


@njit(fastmath=LANES)
def norm(line: Floats, weight: Floats, eps: np.float32, out: Floats) -> None:
    """RMSNorm of one line; ``out`` may be the line itself."""
    total = zero
    for i in range(len(weight)):
        total += line[i] * line[i]
    scale = one / np.sqrt(total / np.float32(len(weight)) + eps)
    for i in range(len(weight)):
        out[i] = line[i] * scale * weight[i]


@njit(**WITHOUT_CHECKS)
def sigmoid(x: np.float32) -> np.float32:
    """1 ÷ (1 + e⁻ˣ), by an exponential that can be made in lanes, which is one of numbers up to 0."""
    e = exp(-abs(x))
    return (one if x >= zero else e) / (one + e)


@njit(fastmath=LANES)
def turn(head: Floats, cos: Floats, sin: Floats) -> None:
    """Rotary position of one head (W,), in place; the first half of ``sin`` is negated already."""
    half = len(head) // 2
    for i in range(half):
        left, right = head[i], head[half + i]
        head[i] = left * cos[i] + right * sin[i]
        head[half + i] = right * cos[half + i] + left * sin[half + i]


@njit(fastmath=LANES)
def score(query: Floats, key: Floats) -> np.float32:
    """q · k"""
    total = zero
    for i in range(len(query)):
        total += query[i] * key[i]
    return total


@njit(fastmath=LANES)
def soften(scores: Floats) -> np.float32:
    """Their exponentials in their place, the largest 1; and the sum of them."""
    most = scores[0]
    for p in range(len(scores)):
        most = max(most, scores[p])
    total = zero
    for p in range(len(scores)):
        scores[p] = exp(scores[p] - most)
    for p in range(len(scores)):
        total += scores[p]
    return total


@njit(**WITHOUT_CHECKS)
def look(
    query: Floats, keys: Floats, values: Floats, begin: int, path: Index, scale: np.float32, scores: Floats, out: Floats
) -> None:
    """Attention of one head (W,) over len(scores) of the keys and values (slots, W): those from slot ``begin`` on, and
    at last those at the slots of ``path``."""
    text = len(scores) - len(path)
    for p in range(text):
        scores[p] = score(query, keys[begin + p]) * scale
    for p in range(len(path)):
        scores[text + p] = score(query, keys[path[p]]) * scale
    total = soften(scores)
    for i in range(len(out)):
        out[i] = zero
    for p in range(text):
        for i in range(len(out)):
            out[i] += scores[p] * values[begin + p, i]
    for p in range(len(path)):
        for i in range(len(out)):
            out[i] += scores[text + p] * values[path[p], i]
    for i in range(len(out)):
        out[i] /= total


@njit
def remember(
    mixed: Floats, sight: Tuple, rotary: Tuple, norms: Tuple, eps: np.float32, keys: Floats, values: Floats
) -> None:
    """Turn queries and keys of ``mixed`` (n, (H + 2 K) · W), and write keys and values (K, slots, W)."""
    slots, positions = sight[:2]
    cos, sin = rotary
    query_norm, key_norm = norms
    width, shared = keys.shape[2], keys.shape[0]
    heads = mixed.shape[1] // width - 2 * shared
    for n in range(len(mixed)):
        slot, place = slots[n], min(positions[n], len(cos) - 1)
        for h in range(heads + shared):
            head = mixed[n, h * width : (h + 1) * width]
            if len(query_norm):
                norm(head, query_norm if h < heads else key_norm, eps, head)
            turn(head, cos[place], sin[place])
        for h in range(shared):
            for i in range(width):
                keys[h, slot, i] = mixed[n, (heads + h) * width + i]
                values[h, slot, i] = mixed[n, (heads + shared + h) * width + i]


@njit
def attend(mixed: Floats, sight: Tuple, scale: np.float32, keys: Floats, values: Floats, out: Floats) -> None:
    """out (n, H · W) ← what each line's queries see of its row."""
    _, _, begins, texts, seen = sight
    width, shared, nodes = keys.shape[2], keys.shape[0], seen.shape[1]
    heads = mixed.shape[1] // width - 2 * shared
    scores, path = np.empty(texts.max() + nodes, np.float32), np.empty(nodes, np.int64)
    for n in range(len(mixed)):
        deep = 0
        for node in range(nodes):
            if seen[n, node]:
                path[deep] = begins[n] + texts[n] + node
                deep += 1
        for h in range(heads):
            begin, end, kept_head = h * width, (h + 1) * width, h * shared // heads
            look(
                mixed[n, begin:end], keys[kept_head], values[kept_head], begins[n], path[:deep], scale,
                scores[: texts[n] + deep], out[n, begin:end],
            )  # fmt: skip


@holding
def look_back(
    mixed: Floats, sight: Tuple, rotary: Tuple, norms: Tuple, eps: np.float32, scale: np.float32, keys: Floats,
    values: Floats, out: Floats,
) -> None:  # fmt: skip
    """Queries, keys and values in, what the queries see out. ``sight``: see :mod:`osd.models.fixed_pass`;
    ``rotary``: cos and sin (positions, W), see :func:`turn`; ``norms``: of queries and of keys (W,), empty where there
    are none."""
    remember(mixed, sight, rotary, norms, eps, keys, values)
    attend(mixed, sight, scale, keys, values, out)


@holding
def add_and_norm(hidden: Floats, part: Floats, weight: Floats, eps: np.float32, out: Floats) -> None:
    """hidden (n, D) grows by ``part``, and out (n, D) ← its RMSNorm."""
    for n in range(len(hidden)):
        for i in range(hidden.shape[1]):
            hidden[n, i] += part[n, i]
        norm(hidden[n], weight, eps, out[n])


@holding
def gate(both: Floats, out: Floats) -> None:
    """out (n, F) ← silu(gate) · up of ``both`` (n, 2 F)."""
    size = out.shape[1]
    for n in range(len(out)):
        for i in range(size):
            out[n, i] = both[n, i] * sigmoid(both[n, i]) * both[n, size + i]


@njit(fastmath=LANES)
def multiply(lines: Floats, weight: Floats, bias: Floats, out: Floats) -> None:
    """out (n, O) ← lines (n, I) · weight (I, O), plus ``bias`` (O,) where it is not empty. I is a multiple of 8: so
    many inputs are multiplied before a sum is written back."""
    for n in range(len(lines)):
        for o in range(out.shape[1]):
            out[n, o] = bias[o] if len(bias) else zero
    for lo in range(0, out.shape[1], BLOCK):
        hi = min(lo + BLOCK, out.shape[1])
        for i in range(0, len(weight), 8):
            w0, w1, w2, w3 = weight[i, lo:hi], weight[i + 1, lo:hi], weight[i + 2, lo:hi], weight[i + 3, lo:hi]
            w4, w5, w6, w7 = weight[i + 4, lo:hi], weight[i + 5, lo:hi], weight[i + 6, lo:hi], weight[i + 7, lo:hi]
            for n in range(len(lines)):
                x0, x1, x2, x3 = lines[n, i], lines[n, i + 1], lines[n, i + 2], lines[n, i + 3]
                x4, x5, x6, x7 = lines[n, i + 4], lines[n, i + 5], lines[n, i + 6], lines[n, i + 7]
                sums = out[n, lo:hi]
                for o in range(len(sums)):
                    left = x0 * w0[o] + x1 * w1[o] + x2 * w2[o] + x3 * w3[o]
                    sums[o] += left + x4 * w4[o] + x5 * w5[o] + x6 * w6[o] + x7 * w7[o]


@holding
def run_layer(
    hidden: Floats, part: Floats, weights: Tuple, before: Floats, after: Floats, sight: Tuple, rotary: Tuple,
    norms: Tuple, eps: np.float32, scale: np.float32, keys: Floats, values: Floats,
) -> None:  # fmt: skip
    """Run one decoder layer: the residual stream ``hidden`` (n, D) grows by ``part`` (n, D), and part becomes what
    hidden is to grow by next. ``weights``: of q, k and v (D, (H + 2 K) · W), their bias, of out (H · W, D), its bias,
    of gate and up (D, 2 F) and of down (F, D); a bias is empty where there is none. ``before``, ``after``: norms (D,).
    The rest: see :func:`look_back`."""
    qkv, qkv_bias, back, back_bias, gate_up, down = weights
    count, size = hidden.shape
    normed, mixed = np.empty((count, size), np.float32), np.empty((count, qkv.shape[1]), np.float32)
    seen, none = np.empty((count, len(back)), np.float32), np.empty(0, np.float32)
    both, inner = np.empty((count, 2 * len(down)), np.float32), np.empty((count, len(down)), np.float32)
    add_and_norm(hidden, part, before, eps, normed)
    multiply(normed, qkv, qkv_bias, mixed)
    look_back(mixed, sight, rotary, norms, eps, scale, keys, values, seen)
    multiply(seen, back, back_bias, part)
    add_and_norm(hidden, part, after, eps, normed)
    multiply(normed, gate_up, none, both)
    gate(both, inner)
    multiply(inner, down, none, part)
