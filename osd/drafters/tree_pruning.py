"""How many nodes a tree may have: what each is expected to bring (osd.drafters.tree_calibration), against what it
costs in the target's pass. A node that is kept brings one token, so a tree brings Σ g_i beside the target's own
token."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate

from osd.draft import Tree

EXPLORE = 16
"""Period, in rounds, at which everything is taken where proposers give no estimates of their tokens: what is deep is
verified only where what is above it was kept."""

Cost = Callable[[int], float | None]
"""Returns the milliseconds of a round in which so many tokens are drafted; None while unknown."""


def bar_of(gains: Sequence[float], sure: float, fixed: int, cost: Cost) -> float:
    """Return the chance that a node must have to stay in a batch's trees: that which makes the most tokens a
    millisecond.

    ``gains`` are the chances of the nodes that may be left out, ``sure`` is what comes without them: a token a row, and
    the chances of the ``fixed`` drafted tokens that stay. 0 while costs are unknown, and where all nodes are worth it:
    the least of them is no bound for the trees to come, which would have fewer nodes from round to round.
    """
    ordered = sorted(gains, reverse=True)
    sums, bars = [0.0, *accumulate(ordered)], [2.0, *ordered[:-1], 0.0]
    best, bar = 0.0, 0.0
    for count in steps(len(ordered)):
        ms = cost(fixed + count)
        if ms is None or ms <= 0:
            return 0.0
        rate = (sure + sums[count]) / ms
        if rate > best:
            best, bar = rate, bars[count]
    return bar


def steps(most: int) -> list[int]:
    """Return the counts that are tried: 0, 1, 2, 3, 4, 6, 8, 12, 16, … and ``most``."""
    found = [0, 1, 2, 3, 4]
    while found[-1] < most:
        found.append(found[-2] * 2)
    return [*found[: bisect.bisect_left(found, most)], most]


def pruned(tree: Tree, nodes: Iterable[int]) -> Tree:
    """Return the tree of these nodes, each after its parent; the drawn ones are among them."""
    left, places = Tree(drawn=tree.drawn), {0: 0}
    for node in nodes:
        places[node] = left.add(places[tree.parents[node - 1]], tree.tokens[node - 1])
    return left
