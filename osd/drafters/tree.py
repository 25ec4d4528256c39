"""Drafts that are trees: a proposer names tokens for each row without a model, or the pool's own drafts branch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from osd.draft import Draft, as_trees, draft_of, without_branches
from osd.draft_tree import Tree, TreeProposal, graft
from osd.drafters.base import DraftRequest, TreeShape
from osd.drafters.pool import DraftPool
from osd.drafters.tree_pruning import TreePruner
from osd.models.decoder import Decoder
from osd.sequence import SequenceState


class Proposer(Protocol):
    """Names tokens that may follow a text. What it names depends on no chance."""

    name: str
    """Used in place of a draft's version, for rounds that it alone drafted."""

    def join(self, row: SequenceState) -> None:
        """Add a row, whose tokens are its prompt."""

    def propose(
        self, rows: Sequence[SequenceState], depths: Sequence[int], nodes: Sequence[int]
    ) -> Sequence[TreeProposal]:
        """Propose what may follow each row's tokens: at most ``depths[i]`` one after another, and ``nodes[i]`` in all.
        What is more is cut."""

    def learn(self, row: SequenceState, start: int) -> None:
        """Learn the row's tokens from ``start`` on, which the target chose. Not called for requests that must not be
        learned from."""

    def recall(self, row: SequenceState, start: int) -> None:
        """Learn them for this row alone, for requests that must not be learned from: nothing of it may outlive the
        row."""

    def leave(self, row: SequenceState) -> None:
        """Drop a row that has ended."""


class TreeDrafter:
    """Drafts trees from a proposer alone. The pool's drafts are assigned to the rows, and rest."""

    def __init__(
        self, pool: DraftPool, proposer: Proposer, nodes: int, target: Decoder, *, sized: bool = False
    ) -> None:
        """``nodes``, ``target`` and ``sized``: as of :class:`osd.drafters.tree_pruning.TreePruner`."""
        self.pool, self.proposer = pool, proposer
        self.pruner = TreePruner(nodes, target, sized=sized)

    def join(self, row: SequenceState, draft: str) -> None:
        """Add a row; see :meth:`osd.drafters.base.Drafting.join`."""
        self.pool.join(row, draft)
        self.proposer.join(row)
        row.has_proposer = True
        row.drafter_seen = row.length

    def leave(self, row: SequenceState) -> None:
        """Drop a row that has ended; see :meth:`osd.drafters.base.Drafting.leave`."""
        self.pool.leave(row)
        self.proposer.leave(row)

    def version(self, row: SequenceState) -> str:
        """Return the proposer's name."""
        return self.proposer.name

    def propose(self, request: DraftRequest) -> Draft:
        """Draft trees; see :meth:`osd.drafters.base.Drafting.propose`."""
        grown = [Tree() for _ in request.rows]
        if any(request.gammas) and self.pool.failures.may_ask(self.proposer.name):
            self._graft(grown, request)
        trees = self.pruner.prune(grown, request.rows, self.pool.costs)
        draft = draft_of(trees, None, max(self.pruner.depths), self.pruner.target.device)
        return without_branches(draft, sampled=request.sampled)

    def _graft(self, trees: list[Tree], request: DraftRequest) -> None:
        """Ask the proposer about the rows that draft, and graft what it names into their trees."""
        room, asked = self.pruner.room(request.rows), [i for i, gamma in enumerate(request.gammas) if gamma]
        rows, gammas = [request.rows[i] for i in asked], [request.gammas[i] for i in asked]
        try:
            proposals = self.proposer.propose(rows, gammas, [room] * len(asked))
            for i, proposal in zip(asked, proposals, strict=True):
                graft(trees[i], proposal, request.gammas[i], room, self.pool.vocabulary)
        except Exception as error:
            self.pool.failures.note_failure(self.proposer.name, error, rows)
        else:
            self.pool.failures.note_success(self.proposer.name)

    def commit(self, row: SequenceState, length_before: int, accepted: int, draft: Draft) -> None:
        """Note what was accepted; see :meth:`osd.drafters.base.Drafting.commit`."""
        row.drafter_seen = row.length  # no model has to read it
        self.pruner.judge(row, length_before)
        teach(self.proposer, row, length_before)

    def measure(self, whole_ms: float) -> None:
        """Count proposing as a pass for each level of the deepest tree: gamma rules price such passes."""
        costs, depths = self.pool.costs, self.pruner.depths
        costs.begin_draft(0)  # what a draft had to read when it was last asked is no part of this
        costs.observe_draft(len(depths), max(depths), self.pruner.round_ms(whole_ms, costs))


class DraftTrees:
    """Drafts trees from the pool's drafts alone: those that read the target's hidden states branch, the others have
    chains."""

    def __init__(self, pool: DraftPool, nodes: int, target: Decoder, *, sized: bool = False) -> None:
        """``nodes``, ``target`` and ``sized``: as of :class:`osd.drafters.tree_pruning.TreePruner`."""
        self.pool, self.pruner = pool, TreePruner(nodes, target, sized=sized)

    def join(self, row: SequenceState, draft: str) -> None:
        """Add a row; see :meth:`osd.drafters.base.Drafting.join`."""
        self.pool.join(row, draft)

    def leave(self, row: SequenceState) -> None:
        """Drop a row that has ended; see :meth:`osd.drafters.base.Drafting.leave`."""
        self.pool.leave(row)

    def version(self, row: SequenceState) -> str:
        """Return the version of the row's draft."""
        return self.pool.version(row)

    def propose(self, request: DraftRequest) -> Draft:
        """Draft trees; see :meth:`osd.drafters.base.Drafting.propose`."""
        shape = TreeShape(self.pruner.room(request.rows), self.pruner.bar(request.rows))
        draft = self.pool.propose(replace(request, tree=shape))
        trees = self.pruner.prune(as_trees(draft, sampled=request.sampled), request.rows, self.pool.costs)
        left = draft_of(trees, draft.q, draft.passes, draft.tokens.device)
        return without_branches(left, sampled=request.sampled)

    def commit(self, row: SequenceState, length_before: int, accepted: int, draft: Draft) -> None:
        """Note what was accepted; see :meth:`osd.drafters.base.Drafting.commit`."""
        self.pool.commit(row, length_before, accepted, draft)
        self.pruner.judge(row, length_before)

    def measure(self, whole_ms: float) -> None:
        """Note the drafting time; see :meth:`osd.drafters.base.Drafting.measure`."""
        self.pool.measure(self.pruner.round_ms(whole_ms, self.pool.costs))


def teach(proposer: Proposer, row: SequenceState, length_before: int) -> None:
    """Have a proposer learn the target's new tokens, for all rows or for this one alone."""
    (proposer.learn if row.request.learn else proposer.recall)(row, length_before)
