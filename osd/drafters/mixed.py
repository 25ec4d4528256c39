"""The learned draft's chain and a proposer's branches, in one tree."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from osd.drafters.base import Draft, Steer
from osd.drafters.tree import TreeDrafter, plant
from osd.gamma.pace import Read
from osd.row import Row
from osd.trees.tree import chain
from osd.warp import Warp


class MixedDrafter(TreeDrafter):
    """Every row's chain comes from its draft in the pool. Its tokens and those that the proposer names stand for the
    same places in the tree, and the likeliest get them. Where the batch samples, the chain is drawn from q and stays. A
    proposer that names nothing leaves the chains alone; a draft that declines leaves the branches."""

    reads = True

    def propose(
        self, rows: Sequence[Row], gammas: Sequence[int], warp: Warp | None, chance: Tensor | None, steer: Steer
    ) -> Draft:
        """See :meth:`osd.drafters.base.Drafting.propose`. Brings the chains to the host, which is a sync of its own.

        A chain ends with the first token that is less likely to be kept than what was left out of trees lately. That
        hangs on how sure the draft was up to that token, on nothing that is drawn after it."""
        self._peaks: dict[str, list[float]] = {row.request.id: [] for row in rows}
        self._gains = dict.fromkeys(self._peaks, 1.0)
        draft = self.pool.propose(rows, gammas, warp, chance, self._steered(steer))
        chains = [line[:length] for line, length in zip(draft.tokens.tolist(), draft.lengths, strict=True)]
        self._chains = {row.request.id: own for row, own in zip(rows, chains, strict=True)}
        pairs = zip(chains, self._peaks.values(), strict=True)
        trees = [chain(own, drawn=warp is not None, peaks=peaks) for own, peaks in pairs]
        self.grow(trees, rows, gammas)
        if all(tree.is_chain and tree.tokens == own for tree, own in zip(trees, chains, strict=True)):
            return draft
        return plant(trees, draft.q, draft.passes, draft.tokens.device, sampled=warp is not None)

    def _steered(self, steer: Steer) -> Steer:
        """The controller's steering, and the end of chains that have become unlikely."""

        def both(rows: Sequence[Row], lengths: list[int], drafted: int, read: Read) -> None:
            steer(rows, lengths, drafted, read)
            peaks = read("peak")
            for i, row in enumerate(rows):
                if lengths[i] >= drafted and self._sinks(row.request.id, peaks[i]):
                    lengths[i] = drafted

        return both

    def _sinks(self, request: str, peak: float) -> bool:
        self._peaks[request].append(peak)
        self._gains[request] *= self.chances.of_peak(peak)
        return self._gains[request] < self.bar

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
