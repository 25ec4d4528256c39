"""Trees from the pool's own drafts: those that read the target's hidden states branch, the others have chains."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from osd.draft import Draft
from osd.drafters.base import ShouldContinue
from osd.drafters.feature_tree import TreeShape
from osd.drafters.merge import as_trees
from osd.drafters.pool import DraftPool
from osd.drafters.tree import TreeDrafter, plant
from osd.drafters.tree_calibration import saw
from osd.models.decoder import Decoder
from osd.sequence import SequenceState
from osd.verification.warping import Warp


class DraftTrees(TreeDrafter):
    """Drafts trees from the pool's drafts alone, calibrated and pruned as all trees are."""

    reads = True

    def __init__(self, pool: DraftPool, nodes: int, target: Decoder, *, sized: bool = False) -> None:
        """``nodes``, ``target`` and ``sized``: as of :class:`osd.drafters.tree.TreeDrafter`."""
        super().__init__(pool, None, nodes, target, sized=sized)  # type: ignore[arg-type]  # nobody names tokens beside

    def join(self, row: SequenceState, draft: str) -> None:
        """Add a row; see :meth:`osd.drafters.base.Drafting.join`."""
        self.pool.join(row, draft)

    def leave(self, row: SequenceState) -> None:
        """Drop a row that has ended; see :meth:`osd.drafters.base.Drafting.leave`."""
        self._planted.pop(row.request.id, None)
        self.pool.leave(row)

    def version(self, row: SequenceState) -> str:
        """Return the version of the row's draft."""
        return self.pool.version(row)

    def propose(
        self, rows: Sequence[SequenceState], gammas: Sequence[int], warp: Warp | None, chance: Tensor | None,
        should_continue: ShouldContinue,
    ) -> Draft:  # fmt: skip
        """Draft trees; see :meth:`osd.drafters.base.Drafting.propose`."""
        nodes = min(self.nodes, self.target.cache.length - max(row.length for row in rows))
        self.pool.shape = TreeShape(nodes, self.bar)
        draft = self.pool.propose(rows, gammas, warp, chance, should_continue)
        trees = list(as_trees(draft, sampled=warp is not None))
        self.settle(trees, rows, [0] * len(trees), nodes)
        return plant(trees, draft.q, draft.passes, draft.tokens.device, sampled=warp is not None)

    def commit(self, row: SequenceState, length_before: int, accepted: int, draft: Draft) -> None:
        """Note what was accepted; see :meth:`osd.drafters.base.Drafting.commit`."""
        self.pool.commit(row, length_before, accepted, draft)
        if planted := self._planted.pop(row.request.id, None):
            saw(*planted, row.tokens[length_before:])

    def measure(self, whole_ms: float) -> None:
        """Note the drafting time; see :meth:`osd.drafters.base.Drafting.measure`."""
        self._first_ms = whole_ms
        self.pool.measure(whole_ms + self.breadth_ms())
