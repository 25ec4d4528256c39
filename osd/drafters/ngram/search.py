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
from osd.drafters.ngram.counts import Floats, Index, successors
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


class SearchRules(NamedTuple):
    """How to search; see :class:`osd.drafters.ngram.maker.MakerSettings`."""

    order: int
    weight: float
    kappa: float
    shortest: int
    searches: int
    breadth: int
    depth: int
    c1: float
    c2: float


def new_bench(searches: int, breadth: int) -> SearchBuffers:
    """Allocate arrays for a number of searches."""
    most = 1 + (searches + 1) * breadth

    def whole(size: int) -> Index:
        return np.zeros(size, np.int64)

    return SearchBuffers(
        whole(most), whole(most), whole(most), whole(most), whole(most), np.zeros(most), np.zeros(most), whole(most),
        np.zeros(most), whole(8 * breadth), np.zeros(8 * breadth), whole(most), whole(most),
    )  # fmt: skip


@njit
def context_of(bench: SearchBuffers, node: int, tail: Index, context: Index) -> int:
    """Write the last tokens of the text that ends at a node to the end of ``context``; return how many there are."""
    room = len(context)
    at = room
    while node > 0 and at > 0:
        at -= 1
        context[at] = bench.tokens[node]
        node = bench.parents[node]
    take = min(at, len(tail))
    for i in range(take):
        context[at - 1 - i] = tail[len(tail) - 1 - i]
    return room - (at - take)


@njit
def expand(
    bench: SearchBuffers,
    node: int,
    size: int,
    shared: Cells,
    own: Cells,
    tail: Index,
    context: Index,
    rules: SearchRules,
) -> int:
    """Ask the table what follows a node; return the new number of nodes."""
    length = context_of(bench, node, tail, context)
    count = successors(
        shared,
        own,
        context[len(context) - length :],
        rules.order,
        rules.shortest,
        rules.weight,
        rules.kappa,
        rules.breadth,
        bench.found,
        bench.chances,
    )
    bench.first[node], bench.children[node] = size, count
    for i in range(count):
        child = size + i
        bench.tokens[child], bench.parents[child], bench.depths[child] = bench.found[i], node, bench.depths[node] + 1
        bench.first[child], bench.children[child], bench.visits[child], bench.values[child] = UNASKED, 0, 0, 0.0
        bench.priors[child] = bench.chances[i]
        bench.likelihoods[child] = bench.likelihoods[node] * bench.chances[i]
    return size + count


@njit
def best_child(bench: SearchBuffers, node: int, c1: float, c2: float) -> int:
    """Return the child with the largest PUCT; among equal ones the likelier."""
    first, count = bench.first[node], bench.children[node]
    total = 0
    for child in range(first, first + count):
        total += bench.visits[child]
    explore = (c1 + math.log((total + c2 + 1.0) / c2)) * math.sqrt(total)
    best, most = first, -np.inf
    for child in range(first, first + count):
        visits = bench.visits[child]
        quality = bench.values[child] / visits if visits > 0 else bench.likelihoods[child]
        score = quality + explore * bench.priors[child] / (1.0 + visits)
        if score > most:
            best, most = child, score
    return best


@njit
def back_up(bench: SearchBuffers, node: int) -> None:
    """Count a visit from a sequence's end to the root."""
    value = bench.likelihoods[node]
    while node > 0:
        bench.visits[node] += 1
        bench.values[node] += value
        node = bench.parents[node]


@njit
def search_row(
    bench: SearchBuffers, shared: Cells, own: Cells, tail: Index, context: Index, rules: SearchRules, depth: int
) -> int:
    """Run every search of one row, ``depth`` tokens deep at most; return the number of nodes."""
    bench.first[0], bench.children[0], bench.depths[0], bench.likelihoods[0] = UNASKED, 0, 0, 1.0
    size = expand(bench, 0, 1, shared, own, tail, context, rules)
    if size == 1:
        return size
    for _ in range(rules.searches):
        node = 0
        while bench.children[node] > 0:
            node = best_child(bench, node, rules.c1, rules.c2)
        if bench.first[node] == UNASKED and bench.depths[node] < depth:
            size = expand(bench, node, size, shared, own, tail, context, rules)
        back_up(bench, node)
    return size


@njit
def is_better(bench: SearchBuffers, a: int, b: int) -> bool:
    """Return whether sequence a is ranked before b: by visits, then by likelihood, then by age."""
    if bench.visits[a] != bench.visits[b]:
        return bench.visits[a] > bench.visits[b]
    if bench.likelihoods[a] != bench.likelihoods[b]:
        return bench.likelihoods[a] > bench.likelihoods[b]
    return a < b


@njit
def merge(bench: SearchBuffers, size: int, tokens: Index, parents: Index, chances: Floats, nodes: int) -> int:
    """Write the best sequences as one tree of up to ``nodes`` tokens, each with its P(s, a); return how many it has.

    Every visited node ends a sequence. A prefix has at least the visits and the likelihood of what continues it, so
    the sequences come in an order in which each adds one token to one before.
    """
    count = 0
    for node in range(1, size):
        if bench.visits[node] > 0:
            bench.order[count] = node
            count += 1
    for i in range(min(nodes, count)):
        best = i
        for j in range(i + 1, count):
            if is_better(bench, bench.order[j], bench.order[best]):
                best = j
        node = bench.order[best]
        bench.order[best], bench.order[i] = bench.order[i], node
        bench.places[node] = i
        tokens[i], chances[i] = bench.tokens[node], bench.priors[node]
        parents[i] = -1 if bench.parents[node] == 0 else bench.places[bench.parents[node]]
    return min(nodes, count)


@njit
def follow(
    bench: SearchBuffers, shared: Cells, own: Cells, tail: Index, context: Index, rules: SearchRules, depth: int
) -> int:
    """Search greedily, for comparison: the likeliest successor, its likeliest successor, …; return the number of
    nodes."""
    bench.depths[0], bench.likelihoods[0] = 0, 1.0
    node, size = 0, 1
    while bench.depths[node] < depth:
        grown = expand(bench, node, size, shared, own, tail, context, rules)
        if grown == size:
            break
        node, size = size, grown
        back_up(bench, node)
    return size


@kept
def draft_rows(
    bench: SearchBuffers, shared: Cells, arena: Cells, places: Index, tails: Index, lengths: Index, context: Index,
    rules: SearchRules, tokens: Index, parents: Index, chances: Floats, sizes: Index, depths: Index,
) -> None:  # fmt: skip
    """Draft trees for R rows.

    Row r's own table is ``arena``'s ``places[r]``, its last tokens are the last ``lengths[r]`` of ``tails[r]``. Fills
    ``tokens``, ``parents`` and ``chances`` (R, N); ``sizes`` (R,) says how many may be, then how many. ``depths`` (R,):
    how deep each may be; none is deeper than the rules say.
    """
    for r in range(len(places)):
        own = table_of(arena, places[r])
        tail = tails[r, tails.shape[1] - lengths[r] :]
        depth = min(rules.depth, depths[r])
        if rules.searches == 0:
            size = follow(bench, shared, own, tail, context, rules, depth)
        else:
            size = search_row(bench, shared, own, tail, context, rules, depth)
        sizes[r] = merge(bench, size, tokens[r], parents[r], chances[r], min(sizes[r], tokens.shape[1]))
