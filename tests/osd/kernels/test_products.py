"""Products with matrices in eight bits, against plain sums in float64 over the same rounded numbers."""

from __future__ import annotations

import platform

import numpy as np
import pytest
from numba import njit
from osd.kernels.matrix import STRIDE, TILE, Array, Matrix, eight_bits, in_tiles
from osd.kernels.products import products, shorten

from osd.kernels import tiles

NONE, MOST = np.empty(0, np.float32), 2**15 - 1
SHAPES = [(1, 1), (TILE, STRIDE), (TILE + 1, STRIDE + 1), (3, 700), (200, 37), (128, 128)]


def numbers_of(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def laid_flat(matrix: Matrix) -> Array:
    """The rounded weights (O, I) in float64, one by one out of the tiles."""
    tiles, units, outputs, inputs = matrix
    flat = np.empty((outputs, inputs))
    for o in range(outputs):
        for i in range(inputs):
            flat[o, i] = float(tiles[o // TILE, i // 2, o % TILE, i % 2]) * float(units[o])
    return flat


def multiplied(matrix: Matrix, lines: Array, bias: Array = NONE) -> Array:
    """As passes do it, in an array that nothing was written to."""
    out = np.full((len(lines), matrix[2]), np.nan, np.float32)
    products(matrix, bias, lines, out)
    return out


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
def test_products_are_sums(shape: tuple[int, int], count: int) -> None:
    """Of as many lines as are taken four, two and one at a time; with rows and inputs that fill no tile."""
    matrix, lines, bias = eight_bits(numbers_of(*shape)), numbers_of(count, shape[1], seed=1), numbers_of(shape[0])
    plain = lines.astype(np.float64) @ laid_flat(matrix).T
    unit = np.abs(lines).max(1, keepdims=True) / MOST  # an input is off by half of it at most
    most = 0.51 * unit * np.abs(laid_flat(matrix)).sum(1) + 1e-5 * np.abs(plain) + 1e-6
    assert (np.abs(multiplied(matrix, lines) - plain) <= most).all()
    assert (np.abs(multiplied(matrix, lines, bias) - plain - bias) <= most).all()


@pytest.mark.parametrize("sums", [4, 8, 16])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_vectors_of_every_length_give_the_same(sums: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of other processors; what is longer than this one's, the compiler takes apart."""
    monkeypatch.setattr(tiles, "sums_of", lambda context: sums)
    multiply = tiles.tile_of(count)

    @njit
    def run(weights: Array, units: Array, numbers: Array, scales: Array, out: Array) -> None:
        multiply(weights, units, numbers, scales, out, 1, 1, 3)

    rng = np.random.default_rng(0)
    weights, numbers = rng.integers(-127, 128, (2 * TILE, 20)), rng.integers(-MOST, MOST + 1, (count + 2, 20))
    units, scales = np.abs(numbers_of(2 * TILE)), np.abs(numbers_of(count + 2))
    out = np.zeros((count + 2, TILE + 5), np.float32)
    run(in_tiles(weights.astype(np.int8)), units, numbers.astype(np.int16), scales, out)
    plain = (numbers @ weights.T)[1 : count + 1, TILE:]  # the second tile, from the second line on
    wanted = np.zeros_like(out)
    wanted[1 : count + 1, 3 : TILE + 3] = plain.astype(np.float32) * units[TILE:] * scales[1 : count + 1, None]
    np.testing.assert_allclose(out, wanted, rtol=1e-6)


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="instructions of x86-64")
def test_the_compiler_finds_the_instructions() -> None:
    """Of Numba 0.61, whose compiler does not, the results are the same, in several times as long."""
    multiplied(eight_bits(numbers_of(TILE, 8)), numbers_of(1, 8))
    (code, *_) = products.inspect_asm().values()
    assert "pmaddwd" in code or "vpdpwssd" in code
    assert "pmulld" not in code


def test_sums_of_many_large_numbers_fit() -> None:
    """With weights of 127 and inputs of 32,767 a sum over 3,000 would be six times what 32 bits hold."""
    matrix, lines = eight_bits(np.ones((2, 3000), np.float32)), np.full((1, 3000), 2.0, np.float32)
    np.testing.assert_allclose(multiplied(matrix, lines), 6000, rtol=1e-3)
    out = np.empty(3000, np.int16)
    shorten(lines[0], out)
    assert 0.99 * 2**31 < 127 * out.astype(np.int64).sum() < 2**31
    lines[0, 1:] = 2**-10  # beside one large number, small ones keep their places
    shorten(lines[0], out)
    assert out[0] == MOST


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_breaks_its_line_and_its_row_alone(broken: float) -> None:
    weight, lines = numbers_of(70, 12), numbers_of(3, 12, seed=1)
    sound = multiplied(eight_bits(weight), lines)
    lines[1, 5] = broken
    out = multiplied(eight_bits(weight), lines)
    assert not np.isfinite(out[1]).any()
    np.testing.assert_array_equal(out[[0, 2]], sound[[0, 2]])
    weight[66, 2] = broken
    out = multiplied(eight_bits(weight), lines)
    assert not np.isfinite(out[:, 66]).any()
    np.testing.assert_array_equal(np.delete(out[[0, 2]], 66, 1), np.delete(sound[[0, 2]], 66, 1))


def test_shortened_lines() -> None:
    line, out = numbers_of(10), np.full(12, 99, np.int16)
    unit = shorten(line, out)
    assert unit == pytest.approx(np.abs(line).max() / MOST)
    assert np.abs(out).max() == MOST
    assert out[10:].tolist() == [0, 0]
    np.testing.assert_allclose(out[:10] * unit, line, atol=0.501 * unit)
    assert shorten(np.zeros(4, np.float32), out) > 0
    assert not out.any()


def test_eight_bits() -> None:
    weight = numbers_of(3, 5, 40)
    weight[0, 0], weight[1, 1], weight[2, 2, 3] = 0.0, 1e-35, np.nan
    matrix = eight_bits(weight)
    numbers, unit, outputs, inputs = matrix
    assert (numbers.dtype, numbers.shape, outputs, inputs) == (np.int8, (3, 1, 20, TILE, 2), 5, 40)
    assert (unit.dtype, unit.shape) == (np.float32, (3, TILE))
    assert np.isnan(unit).sum() == np.isnan(unit[2, 2]) == 1  # and so every product of that row
    assert not numbers[..., 5:, :].any()
    assert not unit[:, 5:].any()
    for each in range(3):
        usual = np.abs(weight[each]).max(-1) > 1e-30
        off = np.abs(laid_flat((numbers[each], unit[each], 5, 40)) - weight[each])[usual]
        assert (off <= 0.5001 * unit[each, :5][usual][:, None]).all()
        assert np.abs(numbers[each, 0][:, :5][:, usual]).max() == 127
    assert not numbers[0, 0, :, 0].any()
    assert not numbers[1, 0, :, 1].any()
