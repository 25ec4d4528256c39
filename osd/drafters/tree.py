"""Drafts without a model: a proposer names tokens for each row, in a tree, and learns from what the target said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from osd.decoder import Decoder
from osd.drafters.base import Draft, Steer
from osd.drafters.pool import DraftPool
from osd.row import Row
from osd.trees.breadth import EXPLORE, Chances, Cost, bar_of, pruned
from osd.trees.tree import Proposal, Tree, graft
from osd.warp import Warp

CALM = 0.1
"""Weight of the newest round in what the last nodes of trees are worth."""
LAST = 8
"""Nodes that are a tree's last: those that a chain longer by so much would take the place of."""


class Proposer(Protocol):
    """Names tokens that may follow a text. What it names hangs on no chance."""

    name: str
    """Stands where the version of a draft stands, for rounds that it alone drafted."""

    def join(self, row: Row) -> None:
        """The row has come: its tokens are its prompt."""
        ...

    def propose(self, rows: Sequence[Row], depths: Sequence[int], nodes: Sequence[int]) -> Sequence[Proposal]:
        """What may follow each row's tokens: at most so many one after another, and so many in all. What is more is
        cut."""
        ...

    def learn(self, row: Row, start: int) -> None:
        """The target said the row's tokens from ``start`` on. Not called for requests that must not be learned from."""
        ...

    def recall(self, row: Row, start: int) -> None:
        """The same for those that must not: only this row may be drafted from it, and nothing may outlive it."""
        ...

    def leave(self, row: Row) -> None:
        """The row has ended."""
        ...


class TreeDrafter:
    """Asks a proposer alone. The pool's drafts seat the rows, and rest."""

    def __init__(
        self, pool: DraftPool, proposer: Proposer, nodes: int, target: Decoder, *, sized: bool = False
    ) -> None:
        """``nodes``: drafted tokens of a row at most, unless its learned chain alone has more; ``target`` has the cache
        that they go to. ``sized``: leave out what costs more in the target's pass than it is expected to bring."""
        self.pool, self.proposer, self.nodes, self.target, self.sized = pool, proposer, nodes, target, sized
        self.chances = Chances()
        self._planted: dict[str, tuple[Tree, int]] = {}
        """Of the newest round, each request's tree and the length of the draft's own chain in it."""
        self._rounds, self._first_ms = 0, 0.0
        self.bar = 0.0
        """The mean chance that the last nodes of full trees had, of late."""
        self._depths: list[int] = []
        """Of the newest round, how deep each row's tree is."""
        self._sizes: list[int] = []
        """How many tokens it has."""

    def join(self, row: Row, draft: str) -> None:
        """See :meth:`osd.drafters.base.Drafting.join`."""
        self.pool.join(row, draft)
        self.proposer.join(row)

    def leave(self, row: Row) -> None:
        """See :meth:`osd.drafters.base.Drafting.leave`."""
        self.pool.leave(row)
        self.proposer.leave(row)

    def version(self, row: Row) -> str:
        """The proposer's name."""
        return self.proposer.name

    def propose(
        self, rows: Sequence[Row], gammas: Sequence[int], warp: Warp | None, chance: Tensor | None, steer: Steer
    ) -> Draft:
        """See :meth:`osd.drafters.base.Drafting.propose`."""
        trees = [Tree() for _ in rows]
        self.grow(trees, rows, gammas)
        return plant(trees, None, max(self._depths), self.pool.decoder.device, sampled=warp is not None)

    def commit(self, row: Row, length_before: int, accepted: int, draft: Draft) -> None:
        """See :meth:`osd.drafters.base.Drafting.commit`."""
        row.drafter_seen = row.length  # no model has to read it
        self.hear(row, length_before, accepted)

    def measure(self, whole_ms: float) -> None:
        """Proposing counts as a pass for each level of the deepest tree: controllers think in such passes."""
        self._first_ms = whole_ms
        self.pool.costs.observe_draft(len(self._depths), max(self._depths), whole_ms + self.breadth_ms())

    def breadth_ms(self) -> float:
        """What the target's pass over the newest round's trees costs above one over chains of their depths. Controllers
        that choose a depth price a token for each level; what a level has more is part of what drafting it costs."""
        costs, rows = self.pool.costs, len(self._depths)
        trees, chains = (costs.verify_ms(rows, self._fed(each)) for each in (self._sizes, self._depths))
        return 0.0 if trees is None or chains is None else max(0.0, trees - chains)

    def _fed(self, lengths: Sequence[int]) -> int:
        rows = len(lengths)
        return rows + (sum(lengths) if self.target.packs else rows * max(lengths))

    def grow(self, trees: list[Tree], rows: Sequence[Row], gammas: Sequence[int]) -> None:
        """Let the rows' proposals grow into their trees, as far as gammas, ``nodes`` and the cache allow and what they
        cost is worth it."""
        nodes = min(self.nodes, self.target.cache.length - max(row.length for row in rows))
        chains = [len(tree) for tree in trees]
        who = [i for i, gamma in enumerate(gammas) if gamma and chains[i] < nodes]
        proposals = self.proposer.propose([rows[i] for i in who], [gammas[i] for i in who], [nodes] * len(who))
        for i, proposal in zip(who, proposals, strict=True):
            graft(trees[i], proposal, gammas[i], nodes, self.pool.vocabulary)
        self._rounds += 1
        self._prune(trees, chains, nodes)
        pairs = zip(rows, trees, chains, strict=True)
        self._planted = {row.request.id: (tree, own) for row, tree, own in pairs if len(tree)}
        self._depths, self._sizes = [max(tree.depths()) for tree in trees], [len(tree) for tree in trees]

    def _prune(self, trees: list[Tree], chains: Sequence[int], nodes: int) -> None:
        gains = [self.chances.gains(tree, own) for tree, own in zip(trees, chains, strict=True)]
        free = [gain for each, own in zip(gains, chains, strict=True) for gain in each[own:]]
        if self.sized and free and self._rounds % EXPLORE:
            sure = len(trees) + sum(sum(each[:own]) for each, own in zip(gains, chains, strict=True))
            bar = bar_of(free, sure, sum(chains), self._cost_of(len(trees)))
            for i, own in enumerate(chains):
                trees[i] = pruned(trees[i], own, gains[i], bar)
        last = [each[-LAST:] for each, tree in zip(gains, trees, strict=True) if len(tree) >= nodes]
        worth = sum(map(sum, last)) / sum(map(len, last)) if last else 0.0
        self.bar += CALM * (worth - self.bar)

    def _cost_of(self, rows: int) -> Cost:
        def cost(drafted: int) -> float | None:
            fed = rows + drafted if self.target.packs else rows * (1 + -(-drafted // rows))
            ms = self.pool.costs.verify_ms(rows, fed)
            return None if ms is None else ms + self._first_ms

        return cost

    def hear(self, row: Row, length_before: int, accepted: int) -> None:
        """The target has spoken: of what was drafted, and the text that comes of it."""
        if planted := self._planted.pop(row.request.id, None):
            self.chances.saw(*planted, row.tokens[length_before : length_before + accepted])
        self.teach(row, length_before)

    def teach(self, row: Row, length_before: int) -> None:
        """Tell the proposer what the target said."""
        (self.proposer.learn if row.request.learn else self.proposer.recall)(row, length_before)


def plant(trees: Sequence[Tree], q: Tensor | None, passes: int, device: torch.device, *, sampled: bool) -> Draft:
    """The rows' trees as one draft; where all of them are chains that the rule for chains can judge, as chains."""
    size = max(len(tree) for tree in trees)
    lines = [[*tree.tokens, *[0] * (size - len(tree))] for tree in trees]
    tokens = torch.tensor(lines, dtype=torch.long, device=device).view(len(trees), size)
    chains = all(tree.drawn == len(tree) if sampled else tree.is_chain for tree in trees)
    return Draft(tokens, tuple(len(tree) for tree in trees), q, passes, None if chains else tuple(trees))
