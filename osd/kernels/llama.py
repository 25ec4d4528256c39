"""A forward pass of a Llama-type model over a few tokens: one call a layer and one for all that follows.

What the lean pass (:mod:`osd.models.llama_forward`) computes with some twenty operations a layer, each of which costs
PyTorch 3 to 10 µs however little it computes. Shapes: n lines (tokens, of any rows), D hidden, H and K heads of
queries and of keys, W a head's width, F feed-forward, V vocabulary. All float32, but for matrices
(:mod:`osd.kernels.products`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from osd.kernels.arithmetic import LANES, WITHOUT_CHECKS, Floats, exp, first_at, largest, one, sum_exp, zero
from osd.kernels.code_cache import holding
from osd.kernels.matrix import Matrix
from osd.kernels.products import products

Index = npt.NDArray[np.int64]
Tuple = tuple[Any, ...]


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
    """:func:`remember`, then :func:`attend`."""
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
def transform(hidden: Floats, normed: Floats, gate_up: Matrix, down: Matrix, part: Floats) -> None:
    """part (n, D) ← the feed-forward half (SwiGLU) of ``normed``."""
    none = np.empty(0, np.float32)
    size = down[3]
    both, inner = np.empty((len(hidden), 2 * size), np.float32), np.empty((len(hidden), size), np.float32)
    products(gate_up, none, normed, both)
    gate(both, inner)
    products(down, none, inner, part)


@holding
def run_layer(
    hidden: Floats, sight: Tuple, rotary: Tuple, weights: Tuple, norms: Tuple, eps: np.float32, scale: np.float32,
    keys: Floats, values: Floats,
) -> None:  # fmt: skip
    """One decoder layer over ``hidden`` (n, D), in place, of which a line sees none that comes after it. ``sight``: see
    :mod:`osd.models.compiled_inputs`. ``rotary``: cos and sin (positions, W); ``weights``: the matrix of q, k
    and v (…, D), their bias, out (D, H · W), its bias, gate and up (2 F, D), down (D, F), the norms before and after
    (D,); ``norms``: of queries and of keys (W,). Biases and those norms are empty where there are none."""
    qkv, qkv_bias, back, back_bias, gate_up, down, before, after = weights
    count, size = hidden.shape
    normed, part = np.empty((count, size), np.float32), np.empty((count, size), np.float32)
    mixed = np.empty((count, qkv[2]), np.float32)
    seen = np.empty((count, back[3]), np.float32)
    for n in range(count):
        norm(hidden[n], before, eps, normed[n])
    products(qkv, qkv_bias, normed, mixed)
    look_back(mixed, sight, rotary, norms, eps, scale, keys, values, seen)
    products(back, back_bias, seen, part)
    add_and_norm(hidden, part, after, eps, normed)
    transform(hidden, normed, gate_up, down, part)
    for n in range(count):
        for i in range(size):
            hidden[n, i] += part[n, i]


@njit(fastmath=LANES)
def accept(embedding: Floats, matrices: Matrix, biases: Floats, out: Floats, chances: Floats) -> None:
    """chances (n,) ← sigmoid of what a SiLU ResNet of layers ``matrices`` (L, D, D), ``biases`` (L, D) and an output
    ``out``, D weights and a bias, makes of ``embedding`` (n, D)."""
    tiles, units, outputs, inputs = matrices
    hidden, part = embedding.copy(), np.empty_like(embedding)
    for k in range(len(tiles)):
        products((tiles[k], units[k], outputs, inputs), biases[k], hidden, part)
        for n in range(len(hidden)):
            for i in range(hidden.shape[1]):
                hidden[n, i] += part[n, i] * sigmoid(part[n, i])
    for n in range(len(hidden)):
        total = zero
        for i in range(hidden.shape[1]):
            total += hidden[n, i] * out[i]
        chances[n] = sigmoid(total + out[hidden.shape[1]])


@njit
def read_off(logits: Floats, choices: Index, peaks: Floats) -> None:
    """Of logits (n, V) the first of the largest in each line (n,), and its probability (n,)."""
    for n in range(len(logits)):
        most = largest(logits[n])
        choices[n], peaks[n] = first_at(logits[n], most), one / sum_exp(logits[n], most)


@holding
def run_top(
    hidden: Floats, final: Floats, eps: np.float32, head: Matrix, bias: Floats, acceptance: Tuple,
    embedding: Floats, logits: Floats, choices: Index, peaks: Floats, chances: Floats,
) -> None:  # fmt: skip
    """embedding (n, D) ← ``hidden`` after the final norm; logits (n, V) ← what the output layer (V, D) makes of it;
    choices and peaks (n,) ← see :func:`read_off`; chances (n,) ← see :func:`accept`, whose ``matrices``, ``biases`` and
    ``out`` ``acceptance`` is; where ``out`` is empty there is no such head."""
    for n in range(len(hidden)):
        norm(hidden[n], final, eps, embedding[n])
    products(head, bias, embedding, logits)
    read_off(logits, choices, peaks)
    matrices, biases, out = acceptance
    if len(out):
        accept(embedding, matrices, biases, out, chances)
