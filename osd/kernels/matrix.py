"""A matrix in eight bits, in the order in which compiled passes (:mod:`osd.kernels.tiles`) read it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Matrix = tuple[Array, Array, int, int]
"""Tiles (…, ⌈O ÷ TILE⌉, I' ÷ 2, TILE, 2) of numbers from −127 to 127, each of TILE outputs (rows of the matrix), in it
pair after pair of inputs, 0 where there is no row or input; what each row's numbers are in units of,
(…, ⌈O ÷ TILE⌉ · TILE) float32; O; and I, of which I' is the next multiple of STRIDE."""
TILE = 64
"""Outputs whose sums are made side by side: four vectors of sixteen, or eight of eight."""
STRIDE = 4
"""Inputs that are taken at once."""
LEAST = np.float32(1e-30)
"""Largest number of a row that is rounded; below it is all 0."""


def eight_bits(weight: Array) -> Matrix:
    """A matrix (…, O, I) float32, each row in units of its own: off by half a unit at most, which is 1 ÷ 254 of the
    row's largest. Where a number is NaN or infinite, so is its row's unit, and all that is multiplied by it NaN."""
    *_, outputs, inputs = weight.shape
    unit = np.maximum(np.abs(weight).max(-1, initial=0.0), LEAST) / np.float32(127)
    with np.errstate(invalid="ignore"):
        numbers = np.rint(weight / unit[..., None]).astype(np.int8)
    return in_tiles(numbers), _padded(unit, -1, TILE), outputs, inputs


def in_tiles(numbers: Array) -> Array:
    """(…, O, I) as the tiles of a :data:`Matrix`."""
    whole = _padded(_padded(numbers, -1, STRIDE), -2, TILE)
    *others, outputs, inputs = whole.shape
    pairs = whole.reshape(*others, outputs // TILE, TILE, inputs // 2, 2)
    return np.ascontiguousarray(np.swapaxes(pairs, -3, -2))


def _padded(numbers: Array, axis: int, multiple: int) -> Array:
    """With zeros behind, up to the next multiple."""
    widths = [(0, 0)] * numbers.ndim
    widths[axis] = (0, -numbers.shape[axis] % multiple)
    return np.pad(numbers, widths)
