"""How likely the nodes of a tree are to be kept: what their sources think, set right by what the target took.

A node is kept with chance g, the product along its path of the chances that the target takes a node where it took the
one before. Such a chance is counted in a cell, by what is known of the node before the target's pass:

    the draft's chain    the peak of the distribution that the token was chosen from
    named too            a token of the chain that a proposer names as well: peak, and the proposer's own estimate
    named                by a proposer that says how likely: its estimate, and whether it comes first among its siblings
    named, no estimate   depth, and rank among its siblings

Cells begin with what the source says and end with what was seen. Every node whose parent the target reached is judged,
in the tree or not: the token that the target took there is known. The chance of a node is never above its parent's, so
the nodes above any bar are connected.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from osd.draft import Tree

DEEP, WIDE = 12, 8
"""Depths and ranks beyond these share the last cell."""
TRUST, MOST = 4.0, 2048.0
"""Trials that the first guess counts for; trials after which those before count half."""
MODEST = 0.6
"""Of what a draft says of itself, what is believed before anything was seen."""
UNSAID = 0.5
"""The peak of a token of a chain that nobody told."""
PEAKS = (0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97)
ESTIMATES = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.3, 0.5, 0.7, 0.85, 0.95)
"""Where one cell ends and the next begins."""
LIKELY = 0.3
"""From this estimate on a proposer means what it says of a token of the chain."""


@dataclass(slots=True)
class ChanceCell:
    """How often the nodes of one kind were kept."""

    tries: float = 0.0
    kept: float = 0.0

    def chance(self, guess: float) -> float:
        """That such a node is kept where its parent was; ``guess`` is what was thought before any was seen."""
        return (self.kept + TRUST * guess) / (self.tries + TRUST)

    def saw(self, kept: bool) -> None:
        """One more."""
        if self.tries >= MOST:
            self.tries, self.kept = self.tries / 2, self.kept / 2
        self.tries, self.kept = self.tries + 1, self.kept + kept


class Belief(NamedTuple):
    """What is thought of one node."""

    chance: float
    """That it is kept where its parent was."""
    cells: tuple[ChanceCell, ...]
    """Where what becomes of it is counted."""


def cells(*shape: int) -> list[list[ChanceCell]]:
    """Rows of cells."""
    return [[ChanceCell() for _ in range(shape[1])] for _ in range(shape[0])]


@dataclass
class Chances:
    """Of nodes, learned from what the target took."""

    chain: list[ChanceCell] = field(default_factory=lambda: cells(1, len(PEAKS) + 1)[0])
    """By peak, all tokens of chains."""
    alone: list[ChanceCell] = field(default_factory=lambda: cells(1, len(PEAKS) // 2 + 1)[0])
    """By peak, those that no proposer names."""
    both: list[list[ChanceCell]] = field(default_factory=lambda: cells(2, len(PEAKS) // 2 + 1))
    """By estimate and peak, those that one names."""
    named: list[list[ChanceCell]] = field(default_factory=lambda: cells(2, len(ESTIMATES) + 1))
    """By rank, 0 or more, and estimate."""
    branches: list[list[ChanceCell]] = field(default_factory=lambda: cells(DEEP, WIDE))
    """By depth and rank, those named without an estimate."""

    def of_peak(self, peak: float) -> float:
        """The chance of a chain's token before anybody else was asked."""
        return self.chain[bisect_right(PEAKS, peak)].chance(MODEST * peak)

    def of(self, tree: Tree, chain: int) -> list[Belief]:
        """(N,) what is thought of each node; the first ``chain`` are the draft's own."""
        found, depths, ranks = [], tree.depths(), [0] * (len(tree) + 1)
        for node, parent in enumerate(tree.parents, 1):
            if node <= chain:
                found.append(self._of_chain(tree, node))
            else:
                found.append(self._of_branch(tree.likely.get(node), depths[node], ranks[parent]))
            ranks[parent] += node > chain or node in tree.likely
        return found

    def _of_chain(self, tree: Tree, node: int) -> Belief:
        peak = tree.peaks[node - 1] if node <= len(tree.peaks) else UNSAID
        place, guess, estimate = bisect_right(PEAKS, peak), self.of_peak(peak), tree.likely.get(node)
        if estimate is None:
            cell = self.alone[place // 2]
        else:
            cell, guess = self.both[estimate >= LIKELY][place // 2], max(guess, estimate)
        return Belief(cell.chance(guess), (self.chain[place], cell))

    def _of_branch(self, estimate: float | None, depth: int, rank: int) -> Belief:
        if estimate is None:
            cell = self.branches[min(depth, DEEP) - 1][min(rank, WIDE - 1)]
            return Belief(cell.chance(0.4 / (1 + rank) ** 1.5), (cell,))
        cell = self.named[min(rank, 1)][bisect_right(ESTIMATES, estimate)]
        return Belief(cell.chance(estimate), (cell,))


def gains(tree: Tree, beliefs: Sequence[Belief]) -> list[float]:
    """(N,) g of each node."""
    found = [1.0]
    for parent, belief in zip(tree.parents, beliefs, strict=True):
        found.append(found[parent] * belief.chance)
    return found[1:]


def saw(tree: Tree, beliefs: Sequence[Belief], tokens: Sequence[int]) -> None:
    """The target went on with these tokens, the one that it added itself among them."""
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
    """The nodes that stay in a tree of ``most``, in their order: the first ``fixed``, and of the others the likeliest;
    of equal ones those that come first."""
    others = sorted(range(fixed, len(gains)), key=lambda i: -gains[i])
    return [i + 1 for i in itertools.chain(range(fixed), sorted(others[: max(0, most - fixed)]))]
