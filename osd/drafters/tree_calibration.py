"""How likely the nodes of a tree are to be accepted: their sources' estimates, calibrated by what the target took.

A node is accepted with chance g, the product along its path of the chances that the target takes a node where it took
the one before. Such a chance is counted in a cell, by what is known of the node before the target's pass:

    the draft's chain    the peak of the distribution that the token was chosen from
    named too            a token of the chain that a proposer names as well: peak, and the proposer's own estimate
    named                by a proposer that says how likely: its estimate, and whether it comes first among its siblings
    named, no estimate   depth, and rank among its siblings

Cells begin with the source's estimate and end with what was seen. Every node whose parent the target reached is judged,
in the tree or not: the token that the target took there is known. The chance of a node is never above its parent's, so
the nodes above any threshold are connected.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from osd.draft import Tree

DEEP, WIDE = 12, 8
"""Depth and rank from which on nodes share the last cell."""
TRUST, MOST = 4.0, 2048.0
"""Trials that the first guess counts for; trials after which those before count half."""
MODEST = 0.6
"""Factor on a draft's own probability, before any node was seen."""
UNSAID = 0.5
"""The peak of a token of a chain whose peak is not known."""
PEAKS = (0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97)
ESTIMATES = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.3, 0.5, 0.7, 0.85, 0.95)
"""Where one cell ends and the next begins."""
LIKELY = 0.3
"""Estimate from which on a proposer's word on a token of the chain counts as a likely one."""


@dataclass(slots=True)
class ChanceCell:
    """How often the nodes of one kind were accepted."""

    tries: float = 0.0
    kept: float = 0.0

    def chance(self, guess: float) -> float:
        """Return the chance that such a node is accepted where its parent was; ``guess`` is the estimate before any was
        seen."""
        return (self.kept + TRUST * guess) / (self.tries + TRUST)

    def saw(self, kept: bool) -> None:
        """Count one more trial."""
        if self.tries >= MOST:
            self.tries, self.kept = self.tries / 2, self.kept / 2
        self.tries, self.kept = self.tries + 1, self.kept + kept


class NodeEstimate(NamedTuple):
    """The estimate for one node."""

    chance: float
    """Chance that it is accepted where its parent was."""
    cells: tuple[ChanceCell, ...]
    """The cells that count its outcome."""


def cells(*shape: int) -> list[list[ChanceCell]]:
    """Return a table of new cells."""
    return [[ChanceCell() for _ in range(shape[1])] for _ in range(shape[0])]


@dataclass
class TreeCalibration:
    """Chances of tree nodes, learned from what the target took."""

    chain: list[ChanceCell] = field(default_factory=lambda: cells(1, len(PEAKS) + 1)[0])
    """All tokens of chains, by peak."""
    alone: list[ChanceCell] = field(default_factory=lambda: cells(1, len(PEAKS) // 2 + 1)[0])
    """Tokens of chains that no proposer names, by peak."""
    both: list[list[ChanceCell]] = field(default_factory=lambda: cells(2, len(PEAKS) // 2 + 1))
    """Tokens of chains that a proposer names, by estimate and peak."""
    named: list[list[ChanceCell]] = field(default_factory=lambda: cells(2, len(ESTIMATES) + 1))
    """Nodes named with an estimate, by rank, 0 or more, and estimate."""
    branches: list[list[ChanceCell]] = field(default_factory=lambda: cells(DEEP, WIDE))
    """Nodes named without an estimate, by depth and rank."""

    def of_peak(self, peak: float) -> float:
        """Return the chance of a chain's token before any proposer was asked."""
        return self.chain[bisect_right(PEAKS, peak)].chance(MODEST * peak)

    def of(self, tree: Tree, chain: int) -> list[NodeEstimate]:
        """Return the estimate for each node, (N,); the first ``chain`` are the draft's own."""
        found, depths, ranks = [], tree.depths(), [0] * (len(tree) + 1)
        for node, parent in enumerate(tree.parents, 1):
            if node <= chain:
                found.append(self._of_chain(tree, node))
            else:
                found.append(self._of_branch(tree.likely.get(node), depths[node], ranks[parent]))
            ranks[parent] += node > chain or node in tree.likely
        return found

    def _of_chain(self, tree: Tree, node: int) -> NodeEstimate:
        peak = tree.peaks[node - 1] if node <= len(tree.peaks) else UNSAID
        place, guess, estimate = bisect_right(PEAKS, peak), self.of_peak(peak), tree.likely.get(node)
        if estimate is None:
            cell = self.alone[place // 2]
        else:
            cell, guess = self.both[estimate >= LIKELY][place // 2], max(guess, estimate)
        return NodeEstimate(cell.chance(guess), (self.chain[place], cell))

    def _of_branch(self, estimate: float | None, depth: int, rank: int) -> NodeEstimate:
        if estimate is None:
            cell = self.branches[min(depth, DEEP) - 1][min(rank, WIDE - 1)]
            return NodeEstimate(cell.chance(0.4 / (1 + rank) ** 1.5), (cell,))
        cell = self.named[min(rank, 1)][bisect_right(ESTIMATES, estimate)]
        return NodeEstimate(cell.chance(estimate), (cell,))


def gains(tree: Tree, beliefs: Sequence[NodeEstimate]) -> list[float]:
    """Return g of each node: (N,)."""
    found = [1.0]
    for parent, belief in zip(tree.parents, beliefs, strict=True):
        found.append(found[parent] * belief.chance)
    return found[1:]


def saw(tree: Tree, beliefs: Sequence[NodeEstimate], tokens: Sequence[int]) -> None:
    """Update the cells with how the target went on, its own additional token included."""
    reached: dict[int, int] = {}  # a node, and the one that the target took after it
    node: int | None = 0
    for token in tokens:
        if node is None:
            break
        reached[node], node = (taken := tree.places.get((node, token), -1)), None if taken < 0 else taken
    for child, (parent, belief) in enumerate(zip(tree.parents, beliefs, strict=True), 1):
        if parent in reached:
            for cell in belief.cells:
                cell.saw(reached[parent] == child)


def likeliest(gains: Sequence[float], fixed: int, most: int) -> list[int]:
    """Return the nodes that stay in a tree of ``most``, in their order: the first ``fixed``, and of the others the
    likeliest; among equal ones those that come first."""
    others = sorted(range(fixed, len(gains)), key=lambda i: -gains[i])
    return [i + 1 for i in itertools.chain(range(fixed), sorted(others[: max(0, most - fixed)]))]
