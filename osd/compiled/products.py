"""Products of a few lines with a matrix of 8-bit numbers: a weight is read once for four lines or two, in lanes.

A few lines leave the processor waiting for weights, and after the target's pass those of a draft come from memory. So a
weight is one byte, and each row has a float32 that it is to be multiplied by.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from osd.compiled.arithmetic import LANES, Floats, zero

Bytes = npt.NDArray[np.int8]
Matrix = tuple[Bytes, Floats]
"""(O, I) numbers from −127 to 127, and (O,) what each row of them is in units of."""


@njit(fastmath=LANES)
def four(weight: Bytes, scale: Floats, lines: Floats, at: int, out: Floats) -> None:
    """Of the lines from ``at`` on: each weight is read once for all."""
    for o in range(weight.shape[0]):
        a, b, c, d = zero, zero, zero, zero
        for i in range(weight.shape[1]):
            w = np.float32(weight[o, i])
            a += w * lines[at, i]
            b += w * lines[at + 1, i]
            c += w * lines[at + 2, i]
            d += w * lines[at + 3, i]
        s = scale[o]
        out[at, o], out[at + 1, o], out[at + 2, o], out[at + 3, o] = s * a, s * b, s * c, s * d


@njit(fastmath=LANES)
def two(weight: Bytes, scale: Floats, lines: Floats, at: int, out: Floats) -> None:
    """The same."""
    for o in range(weight.shape[0]):
        a, b = zero, zero
        for i in range(weight.shape[1]):
            w = np.float32(weight[o, i])
            a += w * lines[at, i]
            b += w * lines[at + 1, i]
        out[at, o], out[at + 1, o] = scale[o] * a, scale[o] * b


@njit(fastmath=LANES)
def single(weight: Bytes, scale: Floats, lines: Floats, at: int, out: Floats) -> None:
    """The same."""
    for o in range(weight.shape[0]):
        a = zero
        for i in range(weight.shape[1]):
            a += np.float32(weight[o, i]) * lines[at, i]
        out[at, o] = scale[o] * a


@njit(fastmath=LANES)
def products(matrix: Matrix, bias: Floats, lines: Floats, out: Floats) -> None:
    """out (n, O) ← lines (n, I) · matrix (O, I)ᵀ + bias (O,), or without one where it is empty."""
    weight, scale = matrix
    count = len(lines)
    for at in range(0, count - 3, 4):
        four(weight, scale, lines, at, out)
    if count & 2:
        two(weight, scale, lines, count // 4 * 4, out)
    if count & 1:
        single(weight, scale, lines, count - 1, out)
    if len(bias):
        for n in range(count):
            for o in range(len(bias)):
                out[n, o] += bias[o]
