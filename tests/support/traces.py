"""Small traces written by hand or drawn by a seed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.gamma.costs import CostTable
from benchmarks.gamma.rounds import RecordedText, Recording
from benchmarks.gamma.simulate import Make, Simulated, Simulator


def greedy_trace(
    matches: Sequence[int], depth: int = 4, end: int | None = None, data_set: str = "hand"
) -> RecordedText:
    """A greedy text with ``matches[t]`` tokens accepted at each position; token t of the text is 100 + t."""
    n = len(matches)
    text = np.arange(100, 100 + n, dtype=np.int32)
    columns = np.arange(depth)
    accepted = (columns < np.asarray(matches)[:, None]).astype(np.float32)
    proposed = np.arange(n)[:, None] + columns + 100
    drafted = np.where(accepted > 0, proposed, 7).astype(np.int32)
    confidence = np.where(accepted > 0, 0.9, 0.3).astype(np.float32)
    prompt = np.array([5, 6], np.int32)
    peak = (confidence + np.float32(0.05)).astype(np.float32)
    return RecordedText(data_set, 0.0, end or n, prompt, text, drafted, confidence, peak, accepted)


def chain_matches(agrees: Sequence[bool], depth: int = 4) -> list[int]:
    """Match lengths of a greedy text from where the draft's first choice is the target's: runs of agreement."""
    run, lengths = 0, []
    for agree in reversed(agrees):
        run = run + 1 if agree else 0
        lengths.append(min(run, depth))
    return lengths[::-1]


def agreeing_trace(agrees: Sequence[bool], depth: int = 4, data_set: str = "hand") -> RecordedText:
    """A greedy text by its set of agreement."""
    return greedy_trace(chain_matches(agrees, depth), depth, data_set=data_set)


def sampled_trace(n: int, depth: int, seed: int = 0, data_set: str = "drawn") -> RecordedText:
    """A sampled text whose acceptance probabilities are drawn uniformly."""
    random = np.random.default_rng(seed)
    text, drafted = (random.integers(0, 50, shape).astype(np.int32) for shape in ((n,), (n, depth)))
    confidence, acceptance = (random.random((n, depth)).astype(np.float32) for _ in range(2))
    peak = np.maximum(confidence, 0.5)
    return RecordedText(data_set, 1.0, n, np.array([3], np.int32), text, drafted, confidence, peak, acceptance)


def recording(*traces: RecordedText) -> Recording:
    """The traces with something said about them."""
    return Recording("target", "aa", "draft", "bb", traces[0].depth, 64, 0, traces)


def simulate(
    traces: Sequence[RecordedText], make: Make, table: CostTable, *, batch: int = 1, noise: float = 0.0, seed: int = 0
) -> Simulated:
    """One replay by a fresh controller."""
    return Simulator(make, table, batch=batch, noise=noise, seed=seed).run(traces)
