"""The learned draft's chain and a proposer's branches, in one tree."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from osd.drafters.base import Draft, Steer
from osd.drafters.tree import TreeDrafter, plant
from osd.row import Row
from osd.trees.breadth import EXPLORE
from osd.trees.tree import chain
from osd.warp import Warp


class MixedDrafter(TreeDrafter):
    """Every row's chain comes from its draft in the pool, drawn from q where the batch samples, and is never cut for a
    branch once it is there. A proposer that names nothing leaves the chains alone; a draft that declines leaves the
    branches."""

    def propose(
        self, rows: Sequence[Row], gammas: Sequence[int], warp: Warp | None, chance: Tensor | None, steer: Steer
    ) -> Draft:
        """See :meth:`osd.drafters.base.Drafting.propose`. Brings the chains to the host, which is a sync of its own.

        A chain is no longer than its last token is as likely to be kept as the last branches were lately: known before
        it is drawn, so nothing hangs on what is drawn."""
        own = gammas if not (self._rounds + 1) % EXPLORE else [self.chances.reach(self.bar, most) for most in gammas]
        draft = self.pool.propose(rows, own, warp, chance, steer)
        chains = [line[:length] for line, length in zip(draft.tokens.tolist(), draft.lengths, strict=True)]
        self._chains = {row.request.id: own for row, own in zip(rows, chains, strict=True)}
        trees = [chain(own, drawn=warp is not None) for own in chains]
        self.grow(trees, rows, gammas)
        if all(len(tree) == length for tree, length in zip(trees, draft.lengths, strict=True)):
            return draft
        return plant(trees, draft.q, draft.passes, draft.tokens.device, sampled=warp is not None)

    def commit(self, row: Row, length_before: int, accepted: int, draft: Draft) -> None:
        """See :meth:`osd.drafters.base.Drafting.commit`. The draft has read its own chain: what was accepted beside
        it, it reads in its next pass."""
        kept = row.tokens[length_before : length_before + accepted]
        self.pool.commit(row, length_before, _common(kept, self._chains[row.request.id]), draft)
        self.hear(row, length_before, accepted)

    def measure(self, whole_ms: float) -> None:
        """See :meth:`osd.drafters.base.Drafting.measure`."""
        self._first_ms = whole_ms
        self.pool.measure(whole_ms + self.breadth_ms())

    def version(self, row: Row) -> str:
        """The version of the row's draft."""
        return self.pool.version(row)


def _common(some: Sequence[int], others: Sequence[int]) -> int:
    """Tokens that both begin with."""
    pairs = enumerate(zip(some, others, strict=False))
    return next((i for i, (one, other) in pairs if one != other), min(len(some), len(others)))
