"""Products that are compiled with the rest of a layer, against plain sums in float64."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from osd.kernels.llama import BLOCK, multiply

Floats = npt.NDArray[np.float32]
NONE = np.empty(0, np.float32)
SHAPES = [(1, 8), (7, 16), (BLOCK - 1, 8), (BLOCK, 24), (2 * BLOCK + 3, 40), (128, 128)]


def numbers_of(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def multiplied(lines: Floats, weight: Floats, bias: Floats = NONE) -> Floats:
    """As passes do it, in an array that nothing was written to."""
    out = np.full((len(lines), len(weight)), np.nan, np.float32)
    multiply(lines, np.ascontiguousarray(weight.T), bias, out)
    return out


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("count", [1, 2, 5])
def test_products_are_sums(shape: tuple[int, int], count: int) -> None:
    """With outputs that fill no block."""
    weight, lines, bias = numbers_of(*shape), numbers_of(count, shape[1], seed=1), numbers_of(shape[0], seed=2)
    plain = lines.astype(np.float64) @ weight.T.astype(np.float64)
    np.testing.assert_allclose(multiplied(lines, weight), plain, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(multiplied(lines, weight, bias), plain + bias, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_breaks_its_line_and_its_row_alone(broken: float) -> None:
    weight, lines = numbers_of(70, 16), numbers_of(3, 16, seed=1)
    sound = multiplied(lines, weight)
    lines[1, 5] = broken
    out = multiplied(lines, weight)
    assert not np.isfinite(out[1]).any()
    np.testing.assert_array_equal(out[[0, 2]], sound[[0, 2]])
    weight[66, 2] = broken
    out = multiplied(lines, weight)
    assert not np.isfinite(out[:, 66]).any()
    np.testing.assert_array_equal(np.delete(out[[0, 2]], 66, 1), np.delete(sound[[0, 2]], 66, 1))
