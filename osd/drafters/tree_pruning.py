"""Which nodes stay in a tree: how likely each is to be accepted, against what it costs in the target's pass.

A node is accepted with chance g, the product along its path of the chances that the target takes a node where it took
the one before. A node that is kept brings one token, so a tree brings Σ g_i beside the target's own token. Such chances
are counted in cells, by what is known of the node before the target's pass:

    with an estimate     the estimate of whoever named it, and whether it comes first among its siblings
    without one          depth, and rank among its siblings

Cells begin with the source's estimate and end with what was seen. Every node whose parent the target reached is judged,
in the tree or not: the token that the target took there is known. The chance of a node is never above its parent's, so
the nodes above any threshold are connected.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from osd.draft_tree import Tree
from osd.gamma.base import TENANTS, CostModel
from osd.models.decoder import Decoder
from osd.sequence import SequenceState

DEEP, WIDE = 12, 8
"""Depth and rank from which on nodes share the last cell."""
TRUST, MOST = 4.0, 2048.0
"""Trials that the first estimate counts for; trials after which those before count half."""
ESTIMATES = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.3, 0.5, 0.7, 0.85, 0.95)
"""Where one cell ends and the next begins."""
EXPLORE = 16
"""Period, in rounds, at which everything is taken where proposers give no estimates of their tokens: what is deep is
verified only where what is above it was kept."""
CALM = 0.1
"""Weight of the newest round in the moving average of the pruning threshold."""

RoundCost = Callable[[int], float | None]
"""Returns the milliseconds of a round in which so many tokens are drafted; None while unknown."""


@dataclass(slots=True)
class ChanceCell:
    """How often the nodes of one kind were accepted."""

    tries: float = 0.0
    kept: float = 0.0

    def chance(self, estimate: float) -> float:
        """Return the chance that such a node is accepted where its parent was; ``estimate`` is the one before any was
        seen."""
        return (self.kept + TRUST * estimate) / (self.tries + TRUST)

    def add_trial(self, kept: bool) -> None:
        """Count one more trial."""
        if self.tries >= MOST:
            self.tries, self.kept = self.tries / 2, self.kept / 2
        self.tries, self.kept = self.tries + 1, self.kept + kept


class NodeEstimate(NamedTuple):
    """The estimate for one node."""

    chance: float
    """Chance that it is accepted where its parent was."""
    cell: ChanceCell
    """The cell that counts its outcome."""


def _cells(lines: int, columns: int) -> list[list[ChanceCell]]:
    return [[ChanceCell() for _ in range(columns)] for _ in range(lines)]


@dataclass
class TreeCalibration:
    """Chances of tree nodes, learned from what the target took."""

    estimated: list[list[ChanceCell]] = field(default_factory=lambda: _cells(2, len(ESTIMATES) + 1))
    """Nodes with an estimate, by rank, 0 or more, and estimate."""
    unknown: list[list[ChanceCell]] = field(default_factory=lambda: _cells(DEEP, WIDE))
    """Nodes without an estimate, by depth and rank."""

    def of(self, tree: Tree) -> list[NodeEstimate]:
        """Return the estimate for each node: (N,)."""
        found, depths, ranks = [], tree.depths(), [0] * (len(tree) + 1)
        for node, parent in enumerate(tree.parents, 1):
            found.append(self._of_node(tree.likely.get(node), depths[node], ranks[parent]))
            ranks[parent] += 1
        return found

    def _of_node(self, estimate: float | None, depth: int, rank: int) -> NodeEstimate:
        if estimate is None:
            cell = self.unknown[min(depth, DEEP) - 1][min(rank, WIDE - 1)]
            return NodeEstimate(cell.chance(0.4 / (1 + rank) ** 1.5), cell)
        cell = self.estimated[min(rank, 1)][bisect.bisect_right(ESTIMATES, estimate)]
        return NodeEstimate(cell.chance(estimate), cell)


def gains(tree: Tree, estimates: Sequence[NodeEstimate]) -> list[float]:
    """Return g of each node: (N,)."""
    found = [1.0]
    for parent, estimate in zip(tree.parents, estimates, strict=True):
        found.append(found[parent] * estimate.chance)
    return found[1:]


def judge_nodes(tree: Tree, estimates: Sequence[NodeEstimate], tokens: Sequence[int]) -> None:
    """Update the cells with how the target went on, its own additional token included."""
    reached: dict[int, int] = {}  # a node, and the one that the target took after it
    node: int | None = 0
    for token in tokens:
        if node is None:
            break
        reached[node], node = (taken := tree.places.get((node, token), -1)), None if taken < 0 else taken
    for child, (parent, estimate) in enumerate(zip(tree.parents, estimates, strict=True), 1):
        if parent in reached:
            estimate.cell.add_trial(reached[parent] == child)


def likeliest(gains: Sequence[float], fixed: int, most: int) -> list[int]:
    """Return the nodes that stay in a tree of ``most``, in their order: the first ``fixed``, and of the others the
    likeliest; among equal ones those that come first."""
    others = sorted(range(fixed, len(gains)), key=lambda i: -gains[i])
    return [i + 1 for i in itertools.chain(range(fixed), sorted(others[: max(0, most - fixed)]))]


def pruned(tree: Tree, nodes: Iterable[int]) -> Tree:
    """Return the tree of these nodes, each after its parent; the drawn ones are among them."""
    left, places = Tree(drawn=tree.drawn), {0: 0}
    for node in nodes:
        places[node] = left.add(places[tree.parents[node - 1]], tree.tokens[node - 1])
    return left


def bar_of(gains: Sequence[float], sure: float, fixed: int, cost: RoundCost) -> float:
    """Return the chance that a node must have to stay in a batch's trees: that which makes the most tokens a
    millisecond.

    ``gains`` are the chances of the nodes that may be left out, ``sure`` is what comes without them: a token a row, and
    the chances of the ``fixed`` drafted tokens that stay. 0 while costs are unknown, and where all nodes are worth it:
    the least of them is no bound for the trees to come, which would have fewer nodes from round to round.
    """
    ordered = sorted(gains, reverse=True)
    sums, bars = [0.0, *itertools.accumulate(ordered)], [2.0, *ordered[:-1], 0.0]
    best, bar = 0.0, 0.0
    for count in tried_counts(len(ordered)):
        ms = cost(fixed + count)
        if ms is None or ms <= 0:
            return 0.0
        rate = (sure + sums[count]) / ms
        if rate > best:
            best, bar = rate, bars[count]
    return bar


def tried_counts(most: int) -> list[int]:
    """Return the counts that are tried: 0, 1, 2, 3, 4, 6, 8, 12, 16, … and ``most``."""
    found = [0, 1, 2, 3, 4]
    while found[-1] < most:
        found.append(found[-2] * 2)
    return [*found[: bisect.bisect_left(found, most)], most]


@dataclass
class TreeHistory:
    """What one tenant's trees have shown."""

    calibration: TreeCalibration = field(default_factory=TreeCalibration)
    bar: float = 0.0
    """Moving average of the chance that a node needed to stay in a tree; 0 where there was room for all."""
    rounds: int = 0

    def take_bar(self, needed: float) -> None:
        """Count what a node needed in the newest round, on average."""
        self.bar += CALM * (needed - self.bar)


def _judges_all(history: TreeHistory, trees: Sequence[Tree]) -> bool:
    return bool(history.rounds % EXPLORE) or any(tree.likely for tree in trees)


class TreePruner:
    """Prunes the trees of a batch, round by round. Of a tenant's trees no other tenant's show anything."""

    def __init__(self, nodes: int, target: Decoder, *, sized: bool) -> None:
        """Keep ``nodes`` drafted tokens of a row at most; ``target`` has the cache that they go to. ``sized``: leave
        out nodes that cost more in the target's pass than they are expected to bring."""
        self.nodes, self.target, self.sized = nodes, target, sized
        self._history = lru_cache(TENANTS)(lambda tenant: TreeHistory())
        self.depths: list[int] = []
        """Depth of each row's tree in the newest round."""
        self.sizes: list[int] = []
        """Number of tokens in each row's tree in the newest round."""
        self._grown: dict[str, tuple[Tree, list[NodeEstimate]]] = {}
        """The newest round's trees before pruning, with the estimates for their nodes, by request."""
        self._draft_ms = 0.0

    def room(self, rows: Sequence[SequenceState]) -> int:
        """Return how many drafted tokens each of these rows may have."""
        return min(self.nodes, self.target.cache.length - max(row.length for row in rows))

    def bar(self, rows: Sequence[SequenceState]) -> float:
        """Return the chance that a node of these rows' trees needed lately to stay, on average."""
        return sum(self._history(row.request.tenant).bar for row in rows) / len(rows)

    def prune(self, grown: Sequence[Tree], rows: Sequence[SequenceState], costs: CostModel) -> list[Tree]:
        """Return what is left of the rows' trees: what was drawn, and of the rest the likeliest, as far as there is
        room and they are worth their cost."""
        known = [self._history(row.request.tenant) for row in rows]
        known[0].rounds += 1
        estimates = [each.calibration.of(tree) for each, tree in zip(known, grown, strict=True)]
        self._grown = {row.request.id: (tree, own) for row, tree, own in zip(rows, grown, estimates, strict=True)}
        chances = [gains(tree, own) for tree, own in zip(grown, estimates, strict=True)]
        room = self.room(rows)
        stay = [likeliest(own, tree.drawn, room) for tree, own in zip(grown, chances, strict=True)]
        bar = self._bar(grown, chances, stay, costs) if self.sized and _judges_all(known[0], grown) else 0.0
        trees, lowest = [], dict[str, list[float]]()
        for tree, own, nodes, row in zip(grown, chances, stay, rows, strict=True):
            needed = max(bar, min(own[n - 1] for n in nodes) if len(nodes) < len(tree) else 0.0)
            lowest.setdefault(row.request.tenant, []).append(needed)
            trees.append(pruned(tree, [n for n in nodes if n <= tree.drawn or own[n - 1] >= bar]))
        for tenant, needs in lowest.items():
            self._history(tenant).take_bar(min(1.0, sum(needs) / len(needs)))
        self.depths, self.sizes = [max(tree.depths()) for tree in trees], [len(tree) for tree in trees]
        return trees

    def judge(self, row: SequenceState, length_before: int) -> None:
        """Learn how likely nodes are from the row's new tokens."""
        if grown := self._grown.pop(row.request.id, None):
            judge_nodes(*grown, row.tokens[length_before:])

    def round_ms(self, draft_ms: float, costs: CostModel) -> float:
        """Return the newest round's drafting time, and the milliseconds that the target's pass over its trees costs
        above one over chains of their depths.

        Gamma rules that choose a depth price a token for each level; what a level has more is part of what drafting it
        costs.
        """
        self._draft_ms = draft_ms
        trees, chains = (costs.verify_ms(len(each), self._fed(each)) for each in (self.sizes, self.depths))
        return draft_ms + (0.0 if trees is None or chains is None else max(0.0, trees - chains))

    def _fed(self, lengths: Sequence[int]) -> int:
        rows = len(lengths)
        return rows + (sum(lengths) if self.target.packs else rows * max(lengths))

    def _bar(
        self, trees: Sequence[Tree], chances: Sequence[Sequence[float]], stay: Sequence[Sequence[int]], costs: CostModel
    ) -> float:
        """Return the chance that pays for a node in the target's pass."""
        drawn, rows = sum(tree.drawn for tree in trees), len(trees)
        sure = rows + sum(sum(own[: tree.drawn]) for tree, own in zip(trees, chances, strict=True))
        pairs = zip(trees, chances, stay, strict=True)
        free = [own[n - 1] for tree, own, nodes in pairs for n in nodes if n > tree.drawn]

        def cost(drafted: int) -> float | None:
            ms = costs.verify_ms(rows, rows + drafted if self.target.packs else rows * (1 + -(-drafted // rows)))
            return None if ms is None else ms + self._draft_ms

        return bar_of(free, sure, drawn, cost) if free else 0.0
