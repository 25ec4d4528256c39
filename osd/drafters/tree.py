"""Drafts without a model: a proposer names tokens for each row, in a tree, and learns from what the target chose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from osd.draft import Draft, Tree, TreeProposal, graft
from osd.drafters.base import ShouldContinue
from osd.drafters.pool import DraftPool
from osd.drafters.tree_calibration import NodeEstimate, TreeCalibration, gains, likeliest, saw
from osd.drafters.tree_pruning import EXPLORE, Cost, bar_of, pruned
from osd.models.decoder import Decoder
from osd.sequence import SequenceState
from osd.verification.warping import Warp

CALM = 0.1
"""Weight of the newest round in the moving average of the pruning threshold."""


class Proposer(Protocol):
    """Names tokens that may follow a text. What it names depends on no chance."""

    name: str
    """Used in place of a draft's version, for rounds that it alone drafted."""

    def join(self, row: SequenceState) -> None:
        """Add a row, whose tokens are its prompt."""
        ...

    def propose(
        self, rows: Sequence[SequenceState], depths: Sequence[int], nodes: Sequence[int]
    ) -> Sequence[TreeProposal]:
        """Propose what may follow each row's tokens: at most ``depths[i]`` one after another, and ``nodes[i]`` in all.
        What is more is cut."""
        ...

    def learn(self, row: SequenceState, start: int) -> None:
        """Learn the row's tokens from ``start`` on, which the target chose. Not called for requests that must not be
        learned from."""
        ...

    def recall(self, row: SequenceState, start: int) -> None:
        """Learn them for this row alone, for requests that must not be learned from: nothing of it may outlive the
        row."""
        ...

    def leave(self, row: SequenceState) -> None:
        """Drop a row that has ended."""
        ...


class TreeDrafter:
    """Drafts trees from a proposer alone. The pool's drafts are assigned to the rows, and rest."""

    reads = False
    """Whether a draft model reads the rows' texts for it."""

    def __init__(
        self, pool: DraftPool, proposer: Proposer, nodes: int, target: Decoder, *, sized: bool = False
    ) -> None:
        """Set up. ``nodes``: drafted tokens of a row at most, unless a chain that was drawn has more; ``target`` has
        the cache that they go to. ``sized``: leave out nodes that cost more in the target's pass than they are expected
        to bring."""
        self.pool, self.proposer, self.nodes, self.target, self.sized = pool, proposer, nodes, target, sized
        self.chances = TreeCalibration()
        self._planted: dict[str, tuple[Tree, list[NodeEstimate]]] = {}
        """The newest round's trees before pruning, with the estimates for their nodes, by request."""
        self._rounds, self._first_ms = 0, 0.0
        self.proposed: dict[int, TreeProposal] = {}
        """The newest round's proposals, by row."""
        self.bar = 0.0
        """Moving average of the chance that a node needed to stay in a tree; 0 where there was room for all."""
        self._depths: list[int] = []
        """Depth of each row's tree in the newest round."""
        self._sizes: list[int] = []
        """Number of tokens in each row's tree in the newest round."""

    def join(self, row: SequenceState, draft: str) -> None:
        """Add a row; see :meth:`osd.drafters.base.Drafting.join`."""
        self.pool.join(row, draft)
        self.proposer.join(row)
        row.has_proposer = True
        if not self.reads:
            row.drafter_seen = row.length

    def leave(self, row: SequenceState) -> None:
        """Drop a row that has ended; see :meth:`osd.drafters.base.Drafting.leave`."""
        self.pool.leave(row)
        self.proposer.leave(row)

    def version(self, row: SequenceState) -> str:
        """Return the proposer's name."""
        return self.proposer.name

    def propose(
        self,
        rows: Sequence[SequenceState],
        gammas: Sequence[int],
        warp: Warp | None,
        chance: Tensor | None,
        should_continue: ShouldContinue,
    ) -> Draft:
        """Draft trees; see :meth:`osd.drafters.base.Drafting.propose`."""
        trees = [Tree() for _ in rows]
        self.grow(trees, rows, gammas)
        return plant(trees, None, max(self._depths), self.target.device, sampled=warp is not None)

    def commit(self, row: SequenceState, length_before: int, accepted: int, draft: Draft) -> None:
        """Note what was accepted; see :meth:`osd.drafters.base.Drafting.commit`."""
        row.drafter_seen = row.length  # no model has to read it
        self.hear(row, length_before, accepted)

    def measure(self, whole_ms: float) -> None:
        """Count proposing as a pass for each level of the deepest tree: gamma rules price such passes."""
        self._first_ms = whole_ms
        self.pool.costs.unread = 0  # what a draft had to read when it was last asked is no part of this
        self.pool.costs.observe_draft(len(self._depths), max(self._depths), whole_ms + self.breadth_ms())

    def breadth_ms(self) -> float:
        """Return the milliseconds that the target's pass over the newest trees costs above one over chains of their
        depths.

        Gamma rules that choose a depth price a token for each level; what a level has more is part of what drafting it
        costs.
        """
        costs, rows = self.pool.costs, len(self._depths)
        trees, chains = (costs.verify_ms(rows, self._fed(each)) for each in (self._sizes, self._depths))
        return 0.0 if trees is None or chains is None else max(0.0, trees - chains)

    def _fed(self, lengths: Sequence[int]) -> int:
        rows = len(lengths)
        return rows + (sum(lengths) if self.target.packs else rows * max(lengths))

    def grow(self, trees: list[Tree], rows: Sequence[SequenceState], gammas: Sequence[int]) -> None:
        """Graft the rows' proposals into their trees, then keep what is likeliest, as far as gammas, ``nodes`` and the
        cache allow and what it costs is worth it."""
        nodes = min(self.nodes, self.target.cache.length - max(row.length for row in rows))
        chains = [len(tree) for tree in trees]
        who = [i for i, gamma in enumerate(gammas) if gamma and trees[i].drawn < nodes]
        self.proposed = {}
        if who and self.pool.failures.may_ask(self.proposer.name):
            self._graft(trees, rows, who, gammas, nodes)
        self.settle(trees, rows, chains, nodes)

    def settle(self, trees: list[Tree], rows: Sequence[SequenceState], chains: Sequence[int], nodes: int) -> None:
        """Prune grown trees, whose first ``chains`` tokens are a draft's chain, to ``nodes`` and to what is worth its
        cost, and note them."""
        self._rounds += 1
        beliefs = [self.chances.of(tree, own) for tree, own in zip(trees, chains, strict=True)]
        grown = zip(rows, trees, beliefs, strict=True)
        self._planted = {row.request.id: (tree, own) for row, tree, own in grown}
        self._prune(trees, beliefs, nodes)
        self._depths, self._sizes = [max(tree.depths()) for tree in trees], [len(tree) for tree in trees]

    def _graft(
        self, trees: list[Tree], rows: Sequence[SequenceState], who: list[int], gammas: Sequence[int], nodes: int
    ) -> None:
        """Ask the proposer about some rows, and graft what it names. Where that raises, drawn chains stay: leaving them
        out would change the distribution."""
        asked, sizes = [rows[i] for i in who], [nodes + len(trees[i]) for i in who]
        try:
            proposals = self.proposer.propose(asked, [gammas[i] for i in who], [nodes] * len(who))
            for i, proposal, size in zip(who, proposals, sizes, strict=True):
                graft(trees[i], proposal, gammas[i], size, self.pool.vocabulary)
                self.proposed[i] = proposal
        except Exception as error:
            self.pool.failures.note(self.proposer.name, error, asked)
        else:
            self.pool.failures.well(self.proposer.name)

    def _prune(self, trees: list[Tree], beliefs: Sequence[Sequence[NodeEstimate]], nodes: int) -> None:
        """Prune the trees: what was drawn stays; the rest must reach the threshold."""
        worth = [gains(tree, own) for tree, own in zip(trees, beliefs, strict=True)]
        stay = [likeliest(each, tree.drawn, nodes) for tree, each in zip(trees, worth, strict=True)]
        bar = self._bar(trees, worth, stay) if self.sized and self._judges_all(trees) else 0.0
        lowest = [0.0] * len(trees)
        for i, (tree, own) in enumerate(zip(trees, worth, strict=True)):
            lowest[i] = max(bar, min(own[n - 1] for n in stay[i]) if len(stay[i]) < len(tree) else 0.0)
            trees[i] = pruned(tree, [n for n in stay[i] if n <= tree.drawn or own[n - 1] >= bar])
        self.bar += CALM * (min(1.0, sum(lowest) / len(lowest)) - self.bar)

    def _judges_all(self, trees: Sequence[Tree]) -> bool:
        return bool(self._rounds % EXPLORE) or any(tree.likely for tree in trees)

    def _bar(self, trees: Sequence[Tree], worth: Sequence[Sequence[float]], stay: Sequence[Sequence[int]]) -> float:
        """Return the chance that pays for a node in the target's pass."""
        drawn = sum(tree.drawn for tree in trees)
        sure = len(trees) + sum(sum(own[: tree.drawn]) for tree, own in zip(trees, worth, strict=True))
        pairs = zip(trees, worth, stay, strict=True)
        free = [own[n - 1] for tree, own, nodes in pairs for n in nodes if n > tree.drawn]
        return bar_of(free, sure, drawn, self._cost_of(len(trees))) if free else 0.0

    def _cost_of(self, rows: int) -> Cost:
        def cost(drafted: int) -> float | None:
            fed = rows + drafted if self.target.packs else rows * (1 + -(-drafted // rows))
            ms = self.pool.costs.verify_ms(rows, fed)
            return None if ms is None else ms + self._first_ms

        return cost

    def hear(self, row: SequenceState, length_before: int, accepted: int) -> None:
        """Learn from the target's tokens: about what was drafted, and the text itself."""
        if planted := self._planted.pop(row.request.id, None):
            saw(*planted, row.tokens[length_before:])
        teach(self.proposer, row, length_before)


def teach(proposer: Proposer, row: SequenceState, length_before: int) -> None:
    """Have a proposer learn the target's new tokens, for all rows or for this one alone."""
    (proposer.learn if row.request.learn else proposer.recall)(row, length_before)


def plant(trees: Sequence[Tree], q: Tensor | None, passes: int, device: torch.device, *, sampled: bool) -> Draft:
    """Return the rows' trees as one draft; where all are chains that the acceptance rule for chains takes, as
    chains."""
    size = max(len(tree) for tree in trees)
    lines = [[*tree.tokens, *[0] * (size - len(tree))] for tree in trees]
    tokens = torch.tensor(lines, dtype=torch.long, device=device).view(len(trees), size)
    chains = all(tree.is_drawn_chain if sampled else tree.is_chain for tree in trees)
    lengths = tuple(len(tree) for tree in trees)
    return Draft(tokens, lengths, q, passes, trees=None if chains else tuple(trees))
