"""What compiled passes share: eˣ from plain arithmetic, which the compiler vectorises, reductions, and pointers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

Floats = npt.NDArray[np.float32]

LANES = {"reassoc", "contract", "nsz"}
"""Fast-math flags that let sums be reordered into vector lanes; NaN and infinities stay what they are."""
WITHOUT_CHECKS = {"fastmath": LANES, "error_model": "numpy"}
"""Options for loops that divide: to check each divisor for 0, and raise Python's error, keeps the compiler from
dividing in lanes."""
LANES_OF_MAXIMA, LOOKED_AT = 256, 64
"""Numbers that are compared side by side, by :func:`largest` and by :func:`first_at`."""
zero, one, half = np.float32(0), np.float32(1), np.float32(0.5)
log2_e, ln2_high, ln2_low = np.float32(1.4426950408889634), np.float32(0.693359375), np.float32(-2.12194440e-4)
c7, c6, c5 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
c4, c3 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1)
least_exponent = np.float32(-87.0)


@intrinsic
def float_of(_: Any, bits: Any) -> Any:
    """Return the float32 that has these 32 bits."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.int32), generate


@intrinsic
def floats_at(_: Any, address: Any) -> Any:
    """Return a pointer to the float32 numbers that begin at this address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.float32)(types.int64), generate


@njit(fastmath={"contract"})
def exp(x: np.float32) -> np.float32:
    """Compute eˣ for x ≤ 0, to 2 units in the last place; NaN stays NaN, and below e⁻⁸⁷ it is e⁻⁸⁷. Plain arithmetic,
    which the compiler turns into vectors: x = n ln 2 + r, eˣ = 2ⁿ eʳ, and eʳ a polynomial (Cephes)."""
    x = least_exponent if x < least_exponent else x
    n = np.floor(x * log2_e + half)
    r = x - n * ln2_high - n * ln2_low
    p = ((((c7 * r + c6) * r + c5) * r + c4) * r + c3) * r + half
    return (p * r * r + r + one) * float_of((np.int32(n) + np.int32(127)) << np.int32(23))


@njit(fastmath=LANES)
def sum_exp(row: Floats, peak: np.float32) -> np.float32:
    """Compute Σ exp(x − peak), in lanes."""
    total = np.float32(0)
    for i in range(len(row)):  # a loop over the row itself is not vectorised
        total += exp(row[i] - peak)
    return total


@njit
def largest(values: Floats) -> np.float32:
    """Return the largest of at least one number, in lanes."""
    whole, best = len(values) // LANES_OF_MAXIMA * LANES_OF_MAXIMA, np.full(LANES_OF_MAXIMA, -np.inf, np.float32)
    for start in range(0, whole, LANES_OF_MAXIMA):
        part = values[start : start + LANES_OF_MAXIMA]
        for j in range(LANES_OF_MAXIMA):
            best[j] = max(best[j], part[j])
    peak = best[0]
    for j in range(LANES_OF_MAXIMA):
        peak = max(peak, best[j])
    for j in range(whole, len(values)):
        peak = max(peak, values[j])
    return peak


@njit
def first_at(values: Floats, peak: np.float32) -> int:
    """Return the index where this number stands first; the last index where it is nowhere (NaN)."""
    for start in range(0, len(values), LOOKED_AT):
        part, hits = values[start : start + LOOKED_AT], np.int32(0)
        for j in range(len(part)):
            hits += np.int32(part[j] == peak)
        if hits:
            for j in range(len(part)):
                if part[j] == peak:
                    return start + j
    return len(values) - 1


@njit
def reaching(values: Any, threshold: Any) -> np.int32:
    """Count the values that are at least the threshold, all of one type."""
    count = np.int32(0)
    for i in range(len(values)):
        count += np.int32(values[i] >= threshold)
    return count
