"""The cost fit, beside the textbook's Gaussian process by solving, and what it must get right."""

from __future__ import annotations

import random

import numpy as np
import pytest

from osd.gamma.costs.pass_times import BEND, LINE, NOISE, PassTimes


def plain(known: dict[tuple[int, int], float], rows: int, sizes: list[int]) -> list[float]:
    """Eq. 2.25, every shape timed once."""
    points, ms = np.array(list(known), float), np.array(list(known.values()))
    scale = points.max(0)

    def kernel(a: np.ndarray, b: np.ndarray) -> float:
        line = [1.0, a[0] * b[0] / scale[0] ** 2, a[1] * b[1] / scale[1] ** 2]
        apart = sum(np.log(a / b) ** 2)
        return float(np.dot(LINE[:3] ** 2, line) + BEND**2 * np.exp(-apart / 2))

    gram = np.array([[kernel(a, b) for b in points] for a in points]) + np.diag((NOISE * ms / ms.mean()) ** 2)
    weights = np.linalg.solve(gram, ms / ms.mean())
    asked = [np.array([rows, size], float) for size in sizes]
    return [float(ms.mean() * np.array([kernel(x, b) for b in points]) @ weights) for x in asked]


def test_a_curve_is_the_textbooks() -> None:
    known = {(1, 1): 4.0, (1, 5): 5.0, (8, 8): 6.0, (8, 40): 11.0}
    times = PassTimes()
    for (rows, size), ms in known.items():
        times.add(rows, size, ms, 0)
    curve = times.curve(8, 8, 40, 0, 0)
    assert curve.ms.tolist() == pytest.approx(plain(known, 8, [int(size) for size in curve.size]), rel=1e-6)
    assert curve.error[0] == 0 and (curve.error[1:] > 0).all()


def test_timings_teach_it_a_bent_curve_through_noise() -> None:
    chance, times = random.Random(3), PassTimes()

    def true(size: int) -> float:
        return max(10.0, 0.4 * size)

    for at in range(400):
        size = chance.choice([8, 12, 16, 24, 32, 40, 56])
        times.add(8, size, true(size) * chance.lognormvariate(0, 0.1) * (20 if chance.random() < 0.03 else 1), at)
    curve = times.curve(8, 8, 56, 0, 400)
    for size, ms in zip(curve.size, curve.ms, strict=True):
        assert ms == pytest.approx(true(size), rel=0.15)
    assert (np.diff(curve.ms) >= 0).all()


def test_the_error_shrinks_with_timings_and_grows_with_distance() -> None:
    few, many = PassTimes(), PassTimes()
    for times, count in ((few, 2), (many, 30)):
        for at in range(count):
            for size, ms in ((8, 5.0), (16, 6.0)):
                times.add(8, size, ms * (1.05 if at % 2 else 0.95), at)
    errors = [times.curve(8, 8, 96, 0, 30) for times in (few, many)]
    near, far = int(np.searchsorted(errors[0].size, 16)), -1
    assert errors[1].error[near] < errors[0].error[near]
    assert errors[1].error[far] > errors[1].error[near]


def test_each_of_several_passes_may_take_less_than_the_first() -> None:
    times = PassTimes(per_pass=True)
    for at in range(20):
        for passes in (1, 2, 4, 8):
            times.add(1, passes, (1.0 + 0.5 * passes) / passes, at)
    curve = times.curve(1, 1, 8, 0, 20)
    assert np.interp([1, 4, 8], curve.size, curve.ms) == pytest.approx([1.5, 0.75, 0.625], rel=0.05)


def test_after_a_row_of_surprises_shapes_that_were_not_timed_again_keep_their_proportions() -> None:
    times = PassTimes()
    for at in range(10):
        for size in (1, 4, 8):
            times.add(1, size, 4.0 + 0.5 * size, at)
    for at in range(10, 18):
        times.add(1, 1, 45.0, at)
    assert times.changes
    curve = times.curve(1, 1, 8, 0, 18)
    assert np.interp([4, 8], curve.size, curve.ms) == pytest.approx([60.0, 80.0], rel=0.1)


def test_a_machine_that_interrupts_most_passes_hides_nothing() -> None:
    chance, times = random.Random(5), PassTimes()
    for at in range(600):
        size = chance.choice([1, 2, 4, 8])
        times.add(1, size, (2.0 + 0.25 * size) * chance.uniform(1, 1.1) + 20.0 * (chance.random() < 0.5), at)
    curve = times.curve(1, 1, 8, 0, 600)
    assert np.interp([1, 2, 8], curve.size, curve.ms) == pytest.approx([2.3, 2.6, 4.1], rel=0.15)


def test_a_wide_probe_gives_way_to_a_narrow_one() -> None:
    narrow, wide = PassTimes(), PassTimes()
    for times, error in ((narrow, 0.0), (wide, 2.0)):
        times.probe(1, 1, 4.0, 0.0)
        times.probe(1, 5, 12.0, error)
    errors = [times.curve(1, 1, 5, 0, 0).error[-1] for times in (narrow, wide)]
    assert errors[1] > 2 * errors[0]
