"""Sums of products of whole numbers, for 64 rows of a matrix at once, by the instructions that processors have for it.

A weight is one byte and an input two: weights are widened, and pairs of both multiplied and added, 16 or 32 products an
instruction (pmaddwd, or vpdpwssd, which adds to the sum as well). In float32 a weight had to be made four bytes and
converted first, at half the pace. The compiler finds these instructions only for sums along a row, whose ends cost as
much again as a row of 128; hence tiles (:mod:`osd.kernels.matrix`), in which each lane is the sum of another row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.cgutils import alloca_once_value, for_range, get_item_pointer
from numba.extending import intrinsic

from osd.kernels.matrix import STRIDE, TILE

byte, short, whole, long, real = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()
Vector = ir.VectorType

SUMS = {"+avx512bw": 16, "+avx2": 8}
"""In a vector, by feature of a processor that has longer ones than others, which have four; the longest first."""
VECTORS = 4
"""Of sums of each line that are made in one go: more would not stay in registers."""


def tile_of(lines: int) -> Any:
    """The compiled function that multiplies a tile by so many lines: a weight is read once for all of them."""

    @intrinsic
    def multiply(
        _: Any, tiles: Any, units: Any, numbers: Any, scales: Any, out: Any, tile: Any, line: Any, to: Any
    ) -> Any:
        """out[line + l, to + o] ← units[tile · TILE + o] · scales[line + l] · Σ weight (o, i) · numbers[line + l, i]
        for l < ``lines``, o < TILE, of one of ``tiles`` as a Matrix of :mod:`osd.kernels.matrix` has them, with as
        many ``numbers``, int16, such that the sums fit in 32 bits; ``scales`` and ``out`` are float32."""

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            def at(array: int, *place: Any) -> Any:
                kind = signature.args[array]
                values = context.make_array(kind)(context, builder, args[array])
                return get_item_pointer(context, builder, kind, values, place)

            tile, line, to = args[5:]
            rows = [builder.add(line, long(n)) for n in range(lines)]
            kernel = _Kernel(builder, sums_of(context), at(0, tile, long(0), long(0), long(0)))
            shape = context.make_array(signature.args[0])(context, builder, args[0]).shape
            kernel.run(
                builder.extract_value(shape, 1), at(1, builder.mul(tile, long(TILE))),
                [at(2, row, long(0)) for row in rows], [builder.load(at(3, row)) for row in rows],
                [at(4, row, to) for row in rows],
            )  # fmt: skip
            return context.get_dummy_value()

        kinds = tiles, units, numbers, scales, out, *[types.int64] * 3
        return types.void(*kinds), generate

    return multiply


def sums_of(context: Any) -> int:
    """In a vector of the processor that Numba compiles for."""
    features = context.codegen().magic_tuple()[-1].split(",")
    return next((sums for feature, sums in SUMS.items() if feature in features), 4)


class _Kernel:
    """Writes the instructions that multiply a tile."""

    def __init__(self, builder: Any, size: int, weights: Any) -> None:
        self._builder, self._size, self._weights = builder, size, weights

    def run(self, pairs: Any, units: Any, inputs: Sequence[Any], scales: Sequence[Any], outs: Sequence[Any]) -> None:
        """All but ``pairs`` and ``scales`` are pointers, one a line but for ``units``."""
        builder, size = self._builder, self._size
        for first in range(0, TILE, VECTORS * size):
            places = range(first, min(first + VECTORS * size, TILE), size)
            for (n, place), total in self._sums(places, inputs, pairs).items():
                value = builder.sitofp(total, Vector(real, size))
                value = builder.fmul(value, self._read(units, long(place), Vector(real, size)))
                value = builder.fmul(value, self._spread(scales[n]))
                builder.store(value, self._point(outs[n], long(place), value.type)).align = 4

    def _sums(self, places: Sequence[int], inputs: Sequence[Any], pairs: Any) -> dict[tuple[int, int], Any]:
        """Of each line for the outputs from each of ``places`` on."""
        builder, kind = self._builder, Vector(whole, self._size)
        parts = range(STRIDE // 2 if len(inputs) == 1 else 1)  # an addition waits for the one before
        keys = [(n, place) for n in range(len(inputs)) for place in places]
        totals = {(*key, p): alloca_once_value(builder, ir.Constant(kind, None)) for key in keys for p in parts}
        with for_range(builder, builder.udiv(pairs, long(STRIDE // 2))) as loop:
            for step in range(STRIDE // 2):
                pair = builder.add(builder.mul(loop.index, long(STRIDE // 2)), long(step))
                both = [self._spread(self._read(line, builder.mul(pair, long(2)), whole)) for line in inputs]
                for place in places:
                    weights = self._weights_of(pair, place)
                    for n, values in enumerate(both):
                        total = totals[n, place, step % len(parts)]
                        builder.store(builder.add(builder.load(total), self._products(weights, values)), total)
        ends = {key: [builder.load(totals[(*key, p)]) for p in parts] for key in keys}
        return {key: end[0] if len(end) == 1 else builder.add(*end) for key, end in ends.items()}

    def _weights_of(self, pair: Any, place: int) -> Any:
        """Of one pair of inputs, from an output on, in 16 bits."""
        offset = self._builder.add(self._builder.mul(pair, long(2 * TILE)), long(2 * place))
        size = 2 * self._size
        return self._builder.sext(self._read(self._weights, offset, Vector(byte, size)), Vector(short, size))

    def _products(self, weights: Any, both: Any) -> Any:
        """Of pairs with pairs, the two of each added."""
        builder, size = self._builder, self._size
        values = builder.bitcast(both, weights.type)
        products = builder.mul(*[builder.sext(each, Vector(whole, 2 * size)) for each in (weights, values)])
        halves = [ir.Constant(Vector(whole, size), [2 * n + half for n in range(size)]) for half in (0, 1)]
        return builder.add(*[builder.shuffle_vector(products, products, half) for half in halves])

    def _spread(self, value: Any) -> Any:
        """The same number in all lanes."""
        lanes, size = Vector(value.type, self._size), self._size
        first = self._builder.insert_element(ir.Constant(lanes, ir.Undefined), value, whole(0))
        return self._builder.shuffle_vector(first, first, ir.Constant(Vector(whole, size), [0] * size))

    def _read(self, pointer: Any, offset: Any, kind: Any) -> Any:
        """What stands so many elements behind; no more aligned than an element is."""
        found = self._builder.load(self._point(pointer, offset, kind))
        found.align = 1
        return found

    def _point(self, pointer: Any, offset: Any, kind: Any) -> Any:
        return self._builder.bitcast(self._builder.gep(pointer, [offset]), kind.as_pointer())
