"""Merges sequences into one tree that shares their common prefixes; compiled."""

from __future__ import annotations

from numba import njit

from osd.drafters.ngram.counts import Index


@njit
def child_of(tokens: Index, parents: Index, size: int, parent: int, token: int) -> int:
    """Return the node that follows ``parent`` with this token, or −1."""
    for node in range(parent + 1, size):
        if parents[node] == parent and tokens[node] == token:
            return node
    return -1


@njit
def add_sequence(tokens: Index, parents: Index, size: int, sequence: Index) -> int:
    """Add a sequence to a tree of ``size`` nodes as far as there is room; return its new size."""
    node = -1
    for i in range(len(sequence)):
        found = child_of(tokens, parents, size, node, sequence[i])
        if found < 0:
            if size == len(tokens):
                break
            found = size
            tokens[found], parents[found] = sequence[i], node
            size += 1
        node = found
    return size
