"""Products of a few lines with a matrix of 8-bit numbers: a weight is read once for four lines or two.

A few lines leave the processor waiting for weights, and after the target's pass those of a draft come from memory. So a
weight is one byte, and inputs are rounded to 16 bits, each line in units of its own.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from osd.kernels.arithmetic import LANES, WITHOUT_CHECKS, Floats, float_of, half, zero
from osd.kernels.matrix import LEAST, TILE, Matrix
from osd.kernels.tiles import tile_of

Shorts = npt.NDArray[np.int16]

one_line, two_lines, four_lines = tile_of(1), tile_of(2), tile_of(4)
MOST, MOST_SUM = np.float32(2**15 - 1), np.float32(0.999 * (2**31 - 1) / 127)
"""Largest number of an input, and what those of a line may sum up to: times 127 it fits in 32 bits."""
ALL_BUT_SIGN, LEAST_BITS = np.int32(2**31 - 1), LEAST.view(np.int32)


@njit(**WITHOUT_CHECKS)
def shorten(line: Floats, out: Shorts) -> np.float32:
    """out ← ``line`` in whole numbers, and 0 behind it; what they are in units of. Where a number is NaN or infinite,
    the unit is no finite number, and what is out is."""
    bits, top, total = line.view(np.int32), np.int32(0), zero
    for i in range(len(line)):  # as whole numbers, which are compared in lanes, and NaN is above all
        top = max(top, np.int32(bits[i] & ALL_BUT_SIGN))
    for i in range(len(line)):
        total += abs(line[i])
    largest = float_of(max(top, LEAST_BITS))
    most = min(MOST, (MOST_SUM - half * np.float32(len(line))) * largest / max(total, largest))
    times = most / largest
    for i in range(len(line)):
        number = np.rint(line[i] * times)
        out[i] = np.int16(np.int32(number if abs(number) <= most else zero))
    for i in range(len(line), len(out)):
        out[i] = 0
    return largest / most


@njit
def multiply(matrix: Matrix, tile: int, numbers: Shorts, scales: Floats, out: Floats, to: int) -> None:
    """One tile by all lines, into the columns of ``out`` from ``to`` on."""
    tiles, units, _, _ = matrix
    count = len(numbers)
    for at in range(0, count - 3, 4):
        four_lines(tiles, units, numbers, scales, out, tile, at, to)
    if count & 2:
        two_lines(tiles, units, numbers, scales, out, tile, count // 4 * 4, to)
    if count & 1:
        one_line(tiles, units, numbers, scales, out, tile, count - 1, to)


@njit(fastmath=LANES)
def products(matrix: Matrix, bias: Floats, lines: Floats, out: Floats) -> None:
    """out (n, O) ← lines (n, I) · matrix (O, I)ᵀ + bias (O,), or without one where it is empty."""
    tiles, _, outputs, _ = matrix
    count = len(lines)
    numbers, scales = np.empty((count, 2 * tiles.shape[1]), np.int16), np.empty(count, np.float32)
    for n in range(count):
        scales[n] = shorten(lines[n], numbers[n])
    for tile in range(outputs // TILE):
        multiply(matrix, tile, numbers, scales, out, tile * TILE)
    rest = outputs % TILE
    if rest:
        last = np.empty((count, TILE), np.float32)
        multiply(matrix, outputs // TILE, numbers, scales, last, 0)
        out[:, outputs - rest :] = last[:, :rest]
    if len(bias):
        for n in range(count):
            for o in range(len(bias)):
                out[n, o] += bias[o]
