"""Inputs of a compiled pass: what each token sees of its row, and where its keys and values are written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from osd.models.tree_mask import Layout

Array = npt.NDArray[Any]
CompiledInputs = tuple[Array, Array, Array, Array, Array]
"""Arrays over n tokens, row after row: (n,) int64 the slots where their keys and values go, their positions, the slots
where their rows begin, and how many slots from there on they see; (n, T) bool which of the T slots behind those they
see, themselves included. T is 0 where there is no tree."""


def of_rows(first: int, starts: Sequence[int], counts: Sequence[int], length: int) -> CompiledInputs:
    """Return the inputs of chains: ``counts[i]`` tokens from position ``starts[i]`` on, in the rows from ``first`` on,
    of ``length`` slots each. Each token sees all up to itself."""
    begins = np.array([(first + row) * length for row, n in enumerate(counts) for _ in range(n)])
    positions = np.array([start + i for start, n in zip(starts, counts, strict=True) for i in range(n)])
    return begins + positions, positions, begins, positions + 1, np.empty((len(positions), 0), np.bool_)


def of_trees(starts: Sequence[int], counts: Sequence[int], length: int, layout: Layout) -> CompiledInputs:
    """Return the inputs of trees: the first ``counts[i]`` nodes in each of the first rows, with roots at ``starts[i]``.
    A node sees the text before the root, and its ancestors."""
    depths, seen = (each.numpy() for each in layout)
    rows, nodes = np.nonzero(np.arange(depths.shape[1]) < np.array(counts)[:, None])
    begins, texts = rows * length, np.array(starts)[rows]
    return begins + texts + nodes, texts + depths[rows, nodes], begins, texts, seen[rows, nodes]


class PassInput(NamedTuple):
    """The tokens of a pass: ``counts[i]`` of them from position ``starts[i]`` on, in each row from ``first`` on; with a
    layout they are trees, in the first rows."""

    first: int
    starts: Sequence[int]
    counts: Sequence[int]
    layout: Layout | None = None

    def sight(self, length: int) -> CompiledInputs:
        """Return the compiled pass's inputs for rows of ``length`` slots."""
        if self.layout is None:
            return of_rows(self.first, self.starts, self.counts, length)
        return of_trees(self.starts, self.counts, length, self.layout)
