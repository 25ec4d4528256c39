"""The draft model's chain and a proposer's branches, in one tree."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from osd.draft import Draft, Tree, chain, graft
from osd.drafters.ask_draft import AskPolicy, Side, brought
from osd.drafters.base import ShouldContinue
from osd.drafters.tree import CALM, TreeDrafter, plant
from osd.drafters.tree_calibration import gains, likeliest
from osd.drafters.tree_pruning import pruned
from osd.gamma.planner import Read
from osd.models.device_timer import busy_seconds
from osd.sequence import SequenceState
from osd.verification.warping import Warp

LATE = 16
"""Unread tokens of a row from which on a draft's first pass is not like its others."""


class MixedDrafter(TreeDrafter):
    """Drafts trees from the pool's chains and a proposer's branches.

    Both compete for the nodes of a row's tree, and the likeliest get them. Where the batch samples, the chain is drawn
    from q and stays. A proposer that names nothing leaves the chains alone; a draft that declines leaves the branches.
    """

    reads = True

    def __init__(self, *parts: Any, **how: Any) -> None:
        """Take the arguments of :class:`osd.drafters.tree.TreeDrafter`. ``sized``: the draft is asked only where that
        pays, too."""
        super().__init__(*parts, **how)
        self.worth = AskPolicy()
        self._chains: dict[str, list[int]] = {}
        self._asked = False
        self._pass_ms: float | None = None
        """Moving average of a draft pass, in milliseconds, where it had little to read first."""
        self._draft_ms = 0.0
        """Milliseconds that the draft took in the newest round, catching up left out."""
        self._alone: dict[str, Tree] = {}
        """The tree that the newest round's proposals make without the draft, by request."""
        self._tokens = self._tokens_alone = self._fed_alone = 0

    def propose(
        self,
        rows: Sequence[SequenceState],
        gammas: Sequence[int],
        warp: Warp | None,
        chance: Tensor | None,
        should_continue: ShouldContinue,
    ) -> Draft:
        """Draft trees, as :meth:`osd.drafters.base.Drafting.propose`. Brings the chains to the host, which is a sync of
        its own.

        A chain ends with the first token that is less likely to be kept than what was left out of trees lately. That
        depends on how sure the draft was up to that token, on nothing that is drawn after it; and whether the draft is
        asked at all, on earlier rounds.
        """
        self.worth.meet({row.loaded.version for row in rows})
        own = [min(gamma, row.draft_room()) for row, gamma in zip(rows, gammas, strict=True)]
        self._asked = any(own) and (not self.sized or self.worth.asks(len(rows)))
        if not self._asked:
            self._chains = {row.request.id: [] for row in rows}
            return super().propose(rows, gammas, warp, chance, should_continue)
        seconds = busy_seconds if self.pool.device.type == "cpu" else time.perf_counter
        begun, late = seconds(), max(row.unread() for row in rows) > LATE
        self._peaks: dict[str, list[float]] = {row.request.id: [] for row in rows}
        self._gains = dict.fromkeys(self._peaks, 1.0)
        draft = self.pool.propose(rows, own, warp, chance, self._steered(should_continue))
        chains = [line[:length] for line, length in zip(draft.tokens.tolist(), draft.lengths, strict=True)]
        self._time(1000 * (seconds() - begun), draft.passes, late=late)
        self._chains = {row.request.id: own for row, own in zip(rows, chains, strict=True)}
        pairs = zip(chains, self._peaks.values(), strict=True)
        trees = [chain(own, drawn=warp is not None, peaks=peaks) for own, peaks in pairs]
        self.grow(trees, rows, gammas)
        if self.sized and draft.passes:
            self._leave_out_the_draft(rows, gammas)
        if all(tree.is_chain and tree.tokens == own for tree, own in zip(trees, chains, strict=True)):
            return draft
        return plant(trees, draft.q, draft.passes, draft.tokens.device, sampled=warp is not None)

    def _time(self, ms: float, passes: int, *, late: bool) -> None:
        """Note how long drafting took. A draft that rested has much to read first, which is no part of what it costs to
        go on."""
        if late and self._pass_ms is not None:
            ms = min(ms, passes * self._pass_ms)
        elif passes:
            each = ms / passes
            self._pass_ms = each if self._pass_ms is None else self._pass_ms + CALM * (each - self._pass_ms)
        self._draft_ms = ms

    def _leave_out_the_draft(self, rows: Sequence[SequenceState], gammas: Sequence[int]) -> None:
        """Make the trees that there would have been without the draft, to compare."""
        self._alone = {row.request.id: Tree() for row in rows}
        for i, proposal in self.proposed.items():
            tree = graft(Tree(), proposal, gammas[i], self.nodes, self.pool.vocabulary)
            own = gains(tree, self.chances.of(tree, 0))
            stay = [n for n in likeliest(own, 0, self.nodes) if own[n - 1] >= self.bar]
            self._alone[rows[i].request.id] = pruned(tree, stay)
        self._tokens = self._tokens_alone = 0
        self._fed_alone = self._fed([len(tree) for tree in self._alone.values()])

    def hear(self, row: SequenceState, length_before: int, accepted: int) -> None:
        """Learn from the target's tokens, as :meth:`osd.drafters.tree.TreeDrafter.hear`."""
        if (tree := self._alone.pop(row.request.id, None)) is not None:
            self._tokens += row.length - length_before
            self._tokens_alone += brought(tree, row.tokens[length_before:])
        super().hear(row, length_before, accepted)

    def _steered(self, should_continue: ShouldContinue) -> ShouldContinue:
        """Return a ``should_continue`` that also ends chains which have become unlikely."""

        def both(rows: Sequence[SequenceState], lengths: list[int], drafted: int, read: Read) -> None:
            should_continue(rows, lengths, drafted, read)
            peaks = read("peak")
            for i, row in enumerate(rows):
                if lengths[i] >= drafted and self._sinks(row.request.id, peaks[i]):
                    lengths[i] = drafted

        return both

    def _sinks(self, request: str, peak: float) -> bool:
        self._peaks[request].append(peak)
        self._gains[request] *= self.chances.of_peak(peak)
        return self._gains[request] < self.bar

    def commit(self, row: SequenceState, length_before: int, accepted: int, draft: Draft) -> None:
        """Note what was accepted, as :meth:`osd.drafters.base.Drafting.commit`. The draft has read its own chain; what
        was accepted beside it, it reads in its next pass."""
        kept = row.tokens[length_before : length_before + accepted]
        self.pool.commit(row, length_before, _common(kept, self._chains[row.request.id]), draft)
        self.hear(row, length_before, accepted)

    def measure(self, whole_ms: float) -> None:
        """Note the drafting time, as :meth:`osd.drafters.base.Drafting.measure`. A round in which the draft is asked
        though that does not pay is no measure of what drafting costs in the others."""
        rows = len(self._sizes)
        if not self._asked:
            super().measure(whole_ms)
            return
        self._first_ms = whole_ms
        if not self.sized or self.worth.pays(rows):
            self.pool.measure(whole_ms + self.breadth_ms())
        both, alone = (self.pool.costs.verify_ms(rows, fed) for fed in (self._fed(self._sizes), self._fed_alone))
        if self._fed_alone and both is not None and alone is not None:
            rest = max(0.0, whole_ms - self._draft_ms)
            sides = Side(self._tokens, rest + self._draft_ms + both), Side(self._tokens_alone, rest + alone)
            if self.worth.saw(rows, *sides):
                self.pool.costs.forget_drafts()
        self._fed_alone = 0

    def version(self, row: SequenceState) -> str:
        """Return the version of the row's draft."""
        return self.pool.version(row)


def _common(some: Sequence[int], others: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    pairs = enumerate(zip(some, others, strict=False))
    return next((i for i, (one, other) in pairs if one != other), min(len(some), len(others)))
