"""The plain reference of a cache: each row is a list of keys and values, and what happens to rows happens to lists."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


class PlainCache:
    """Rows of (key, value) pairs, each (heads, head_dim)."""

    def __init__(self, rows: int) -> None:
        self.rows: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(rows)]

    def write(self, row: int, start: int, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Let a row go on from a position with these."""
        self.rows[row] = [*self.rows[row][:start], *pairs]

    def close_up(self, row: int, start: int, path: Sequence[int]) -> None:
        """Keep a tree's nodes on a path, in that order, and nothing else of it."""
        tree = self.rows[row][start:]
        self.rows[row] = [*self.rows[row][:start], *(tree[node] for node in path)]

    def copy(self, source: int, target: int) -> None:
        """Copy a row over another."""
        self.rows[target] = list(self.rows[source])

    def swap(self, one: int, other: int) -> None:
        """Exchange two rows."""
        self.rows[one], self.rows[other] = self.rows[other], self.rows[one]

    def release(self, row: int) -> None:
        """Empty a row."""
        self.rows[row] = []
