"""The draft maker: Monte Carlo tree search over an n-gram table (Adaptix), compiled.

One search walks from the root to a sequence that was not looked at yet, always to the child with the largest

    PUCT(s, a) = Q(s, a) + E P(s, a) √Σ_b N(s, b) / (1 + N(s, a))       E = C1 + log((Σ_b N(s, b) + C2 + 1) / C2)

(Eqs. 2 and 3), asks the table what follows it, and counts a visit on its way back. Rows are searched one after another
in one call, in the same arrays.

Q(s, a) is the mean, over the searches that went through a, of Π P of the sequence that the search ended with: what
Eq. 8 writes as Σ log P, taken back to a chance, so that Q and P are of one size and C1 and C2 mean the same in every
text. A child that no search went through has its own.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from osd.drafters.ngram.cells import Cells, table_of
from osd.drafters.ngram.counts import Floats, Index, SearchRules, successors
from osd.kernels.code_cache import kept

UNASKED = -1


class SearchBuffers(NamedTuple):
    """Arrays of one search tree of M nodes; node 0 is the row's last token."""

    tokens: Index
    parents: Index
    depths: Index
    first: Index
    """(M,) a node's first child; children lie side by side. UNASKED before the table was asked."""
    children: Index
    """(M,) number of children."""
    priors: Floats
    """(M,) P(s, a)."""
    likelihoods: Floats
    """(M,) Π P of the sequence that ends here: e to the power of Eq. 8."""
    visits: Index
    """(M,) N(s, a)."""
    values: Floats
    """(M,) sum over the visits whose mean is Q(s, a)."""
    found: Index
    chances: Floats
    """Chances of the tokens ``found``, as the table answers."""
    order: Index
    """(M,) nodes in the order of their rank."""
    places: Index
    """(M,) a node's index in the merged tree."""
    context: Index
    """The last tokens of a node's text, as the table is asked: the order of n-grams less one."""


class DraftRows(NamedTuple):
    """Arrays of R rows that are drafted for, N nodes each."""

    places: Index
    """(R,) the rows' own tables in the arena."""
    tails: Index
    """(R, order − 1) the ends of their texts."""
    lengths: Index
    """(R,) tokens of the tails that count, the last ones."""
    depths: Index
    """(R,) how deep trees may be; none is deeper than the rules say."""
    sizes: Index
    """(R,) how many nodes there may be, then how many there are."""
    tokens: Index
    """(R, N)"""
    parents: Index
    """(R, N)"""
    chances: Floats
    """(R, N) P(s, a) of each node."""

    def part(self, rows: slice) -> DraftRows:
        """Return some of the rows, in the same memory."""
        return DraftRows(*(array[rows] for array in self))  # type: ignore[arg-type]  # each in its place


def new_rows(rows: int, nodes: int, order: int) -> DraftRows:
    """Allocate arrays for a number of rows."""
    places, lengths, depths, sizes = (np.zeros(rows, np.int64) for _ in range(4))
    tails, tokens, parents = (np.zeros((rows, width), np.int64) for width in (order - 1, nodes, nodes))
    return DraftRows(places, tails, lengths, depths, sizes, tokens, parents, np.zeros((rows, nodes)))


def new_buffers(searches: int, breadth: int, order: int) -> SearchBuffers:
    """Allocate arrays for a number of searches."""
    most = 1 + (searches + 1) * breadth

    def whole(size: int) -> Index:
        return np.zeros(size, np.int64)

    return SearchBuffers(
        whole(most), whole(most), whole(most), whole(most), whole(most), np.zeros(most), np.zeros(most), whole(most),
        np.zeros(most), whole(8 * breadth), np.zeros(8 * breadth), whole(most), whole(most), whole(order - 1),
    )  # fmt: skip


@njit
def context_of(buffers: SearchBuffers, node: int, tail: Index) -> int:
    """Write the last tokens of the text that ends at a node to the end of ``buffers.context``; return how many there
    are."""
    context = buffers.context
    room = len(context)
    at = room
    while node > 0 and at > 0:
        at -= 1
        context[at] = buffers.tokens[node]
        node = buffers.parents[node]
    take = min(at, len(tail))
    for i in range(take):
        context[at - 1 - i] = tail[len(tail) - 1 - i]
    return room - (at - take)


@njit
def expand(
    buffers: SearchBuffers, node: int, size: int, shared: Cells, own: Cells, tail: Index, rules: SearchRules
) -> int:
    """Ask the table what follows a node; return the new number of nodes."""
    length = context_of(buffers, node, tail)
    context = buffers.context[len(buffers.context) - length :]
    count = successors(shared, own, context, rules, buffers.found, buffers.chances)
    buffers.first[node], buffers.children[node] = size, count
    for i in range(count):
        child = size + i
        buffers.tokens[child], buffers.parents[child] = buffers.found[i], node
        buffers.depths[child] = buffers.depths[node] + 1
        buffers.first[child], buffers.children[child], buffers.visits[child], buffers.values[child] = UNASKED, 0, 0, 0.0
        buffers.priors[child] = buffers.chances[i]
        buffers.likelihoods[child] = buffers.likelihoods[node] * buffers.chances[i]
    return size + count


@njit
def best_child(buffers: SearchBuffers, node: int, c1: float, c2: float) -> int:
    """Return the child with the largest PUCT; among equal ones the likelier."""
    first, count = buffers.first[node], buffers.children[node]
    total = 0
    for child in range(first, first + count):
        total += buffers.visits[child]
    explore = (c1 + math.log((total + c2 + 1.0) / c2)) * math.sqrt(total)
    best, most = first, -np.inf
    for child in range(first, first + count):
        visits = buffers.visits[child]
        quality = buffers.values[child] / visits if visits > 0 else buffers.likelihoods[child]
        score = quality + explore * buffers.priors[child] / (1.0 + visits)
        if score > most:
            best, most = child, score
    return best


@njit
def back_up(buffers: SearchBuffers, node: int) -> None:
    """Count a visit from a sequence's end to the root."""
    value = buffers.likelihoods[node]
    while node > 0:
        buffers.visits[node] += 1
        buffers.values[node] += value
        node = buffers.parents[node]


@njit
def search_row(buffers: SearchBuffers, shared: Cells, own: Cells, tail: Index, rules: SearchRules, depth: int) -> int:
    """Run every search of one row, ``depth`` tokens deep at most; return the number of nodes."""
    buffers.first[0], buffers.children[0], buffers.depths[0], buffers.likelihoods[0] = UNASKED, 0, 0, 1.0
    size = expand(buffers, 0, 1, shared, own, tail, rules)
    if size == 1:
        return size
    for _ in range(rules.searches):
        node = 0
        while buffers.children[node] > 0:
            node = best_child(buffers, node, rules.c1, rules.c2)
        if buffers.first[node] == UNASKED and buffers.depths[node] < depth:
            size = expand(buffers, node, size, shared, own, tail, rules)
        back_up(buffers, node)
    return size


@njit
def is_better(buffers: SearchBuffers, a: int, b: int) -> bool:
    """Return whether sequence a is ranked before b: by visits, then by likelihood, then by age."""
    if buffers.visits[a] != buffers.visits[b]:
        return buffers.visits[a] > buffers.visits[b]
    if buffers.likelihoods[a] != buffers.likelihoods[b]:
        return buffers.likelihoods[a] > buffers.likelihoods[b]
    return a < b


@njit
def merge(buffers: SearchBuffers, size: int, tokens: Index, parents: Index, chances: Floats, nodes: int) -> int:
    """Write the best sequences as one tree of up to ``nodes`` tokens, each with its P(s, a); return how many it has.

    Every visited node ends a sequence. A prefix has at least the visits and the likelihood of what continues it, so
    the sequences come in an order in which each adds one token to one before.
    """
    count = 0
    for node in range(1, size):
        if buffers.visits[node] > 0:
            buffers.order[count] = node
            count += 1
    for i in range(min(nodes, count)):
        best = i
        for j in range(i + 1, count):
            if is_better(buffers, buffers.order[j], buffers.order[best]):
                best = j
        node = buffers.order[best]
        buffers.order[best], buffers.order[i] = buffers.order[i], node
        buffers.places[node] = i
        tokens[i], chances[i] = buffers.tokens[node], buffers.priors[node]
        parents[i] = -1 if buffers.parents[node] == 0 else buffers.places[buffers.parents[node]]
    return min(nodes, count)


@njit
def follow(buffers: SearchBuffers, shared: Cells, own: Cells, tail: Index, rules: SearchRules, depth: int) -> int:
    """Search greedily, for comparison: the likeliest successor, its likeliest successor, …; return the number of
    nodes."""
    buffers.depths[0], buffers.likelihoods[0] = 0, 1.0
    node, size = 0, 1
    while buffers.depths[node] < depth:
        grown = expand(buffers, node, size, shared, own, tail, rules)
        if grown == size:
            break
        node, size = size, grown
        back_up(buffers, node)
    return size


@kept
def draft_rows(buffers: SearchBuffers, shared: Cells, arena: Cells, rows: DraftRows, rules: SearchRules) -> None:
    """Draft trees for rows, whose own tables are in the arena."""
    for r in range(len(rows.places)):
        own = table_of(arena, rows.places[r])
        tail = rows.tails[r, rows.tails.shape[1] - rows.lengths[r] :]
        depth = min(rules.depth, rows.depths[r])
        if rules.searches == 0:
            size = follow(buffers, shared, own, tail, rules, depth)
        else:
            size = search_row(buffers, shared, own, tail, rules, depth)
        most = min(rows.sizes[r], rows.tokens.shape[1])
        rows.sizes[r] = merge(buffers, size, rows.tokens[r], rows.parents[r], rows.chances[r], most)
