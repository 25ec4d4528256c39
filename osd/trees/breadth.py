"""How many nodes a tree may have: what each is expected to bring, against what it costs in the target's pass.

A node that is kept brings one token, so a tree brings Σ g_i beside the target's own token, g_i being the chance that
node i is kept: the product, along its path, of the chances that a node is kept where its parent was. These are counted
by where a node stands: among proposed tokens by its depth and its rank among its siblings, in the draft's own chain by
its depth. The chance of a node is never above its parent's, so the nodes above any bar are connected.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from osd.trees.tree import Tree

DEEP, WIDE = 12, 8
"""Depths and ranks beyond these share the last cell."""
TRUST, MOST = 4.0, 256.0
"""Trials that the first guess counts for; trials after which those before count half."""
EXPLORE = 16
"""One round in so many takes everything, so that what was left out is still judged."""


@dataclass
class Cell:
    """How often the nodes of one place were kept."""

    guess: float
    tries: float = 0.0
    kept: float = 0.0

    @property
    def chance(self) -> float:
        """That such a node is kept where its parent was."""
        return (self.kept + TRUST * self.guess) / (self.tries + TRUST)

    def saw(self, kept: bool) -> None:
        """One more."""
        if self.tries >= MOST:
            self.tries, self.kept = self.tries / 2, self.kept / 2
        self.tries, self.kept = self.tries + 1, self.kept + kept


@dataclass
class Chances:
    """Of nodes, learned from what the target kept."""

    chain: list[Cell] = field(default_factory=lambda: [Cell(0.6) for _ in range(DEEP)])
    branches: list[list[Cell]] = field(
        default_factory=lambda: [[Cell(0.4 / (1 + rank) ** 1.5) for rank in range(WIDE)] for _ in range(DEEP)]
    )

    def gains(self, tree: Tree, chain: int) -> list[float]:
        """(N,) the chance of each node; the first ``chain`` are the draft's own."""
        gains = [1.0]
        for parent, cell in zip(tree.parents, self.cells(tree, chain), strict=True):
            gains.append(gains[parent] * cell.chance)
        return gains[1:]

    def cells(self, tree: Tree, chain: int) -> list[Cell]:
        """(N,) where each node is counted."""
        depths, ranks, found = tree.depths(), [0] * (len(tree) + 1), []
        for node, parent in enumerate(tree.parents, 1):
            deep = min(depths[node], DEEP) - 1
            if node <= chain:
                found.append(self.chain[deep])
            else:
                found.append(self.branches[deep][min(ranks[parent], WIDE - 1)])
                ranks[parent] += 1
        return found

    def saw(self, tree: Tree, chain: int, tokens: Sequence[int]) -> None:
        """The target went along these tokens of the tree, and no further."""
        path = [0]
        for token in tokens:
            path.append(tree.places[path[-1], token])
        reached, kept = set(path), set(path[1:])
        for node, (parent, cell) in enumerate(zip(tree.parents, self.cells(tree, chain), strict=True), 1):
            if parent in reached:
                cell.saw(node in kept)

    def reach(self, bar: float, most: int) -> int:
        """How many tokens of a draft's chain have chances of the bar or more; at least one, if there may be one."""
        gain, count = 1.0, 0
        while count < most:
            gain *= self.chain[min(count, DEEP - 1)].chance
            if gain < bar and count:
                break
            count += 1
        return count


Cost = Callable[[int], float | None]
"""Milliseconds of a round in which so many tokens are drafted; None while unknown."""


def bar_of(gains: Sequence[float], sure: float, fixed: int, cost: Cost) -> float:
    """The chance that a node must have to stay in the trees of a batch: that which makes the most tokens a millisecond.

    ``gains`` are the chances of the nodes that may be left out, ``sure`` is what comes without them: a token a row, and
    the chances of the ``fixed`` drafted tokens that stay. 0 while costs are unknown.
    """
    ordered = sorted(gains, reverse=True)
    sums = [0.0, *accumulate(ordered)]
    best, bar = 0.0, 0.0
    for count in steps(len(ordered)):
        ms = cost(fixed + count)
        if ms is None or ms <= 0:
            return 0.0
        rate = (sure + sums[count]) / ms
        if rate > best:
            best, bar = rate, ordered[count - 1] if count else 2.0
    return bar


def steps(most: int) -> list[int]:
    """Counts that are tried: 0, 1, 2, 3, 4, 6, 8, 12, 16, … and ``most``."""
    found = [0, 1, 2, 3, 4]
    while found[-1] < most:
        found.append(found[-2] * 2)
    return [*found[: bisect.bisect_left(found, most)], most]


def pruned(tree: Tree, chain: int, gains: Sequence[float], bar: float) -> Tree:
    """The tree without what is below the bar; the first ``chain`` nodes stay."""
    left, nodes = Tree(drawn=tree.drawn), {0: 0}
    for node, (token, parent, gain) in enumerate(zip(tree.tokens, tree.parents, gains, strict=True), 1):
        if node <= chain or (gain >= bar and parent in nodes):
            nodes[node] = left.add(nodes[parent], token)
    return left
