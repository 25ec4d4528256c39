"""Keeps what a drafter raises from the decode loop: the round goes on without a draft.

What was drawn before a draft's pass raised is verified all the same
(:meth:`osd.drafters.causal.CausalDrafter.propose`): to leave it out because of what came after would change the
distribution. What reaches this guard drew nothing first.
"""

from __future__ import annotations

from collections.abc import Sequence

from osd.draft import Draft, empty_draft
from osd.drafters.base import Drafting, DraftRequest
from osd.drafters.pool import DraftPool
from osd.sequence import SequenceState
from storage.errors import BadProposal


class DraftGuard:
    """A drafter that never raises: :class:`osd.drafters.base.Drafting` over another one.

    A row of which a drafter's state is in doubt leaves it and joins it anew, with the text so far as its prompt, before
    the drafter is asked again.
    """

    def __init__(self, drafting: Drafting, pool: DraftPool, name: str) -> None:
        """Guard a drafter over ``pool``. ``name``: under which its failures are counted."""
        self.drafting, self.pool, self.name = drafting, pool, name
        self.failures = pool.failures
        self.failures.counts[name] = 0  # so that a metric is there before anything fails
        self._asked = False
        """Whether the newest round's draft is the drafter's own."""

    def join(self, row: SequenceState, draft: str) -> None:
        """Assign a draft to a new row; see :meth:`osd.drafters.base.Drafting.join`."""
        try:
            self.drafting.join(row, draft)
        except Exception as error:
            self._failed(error, [row])
            if not self.pool.has(row):
                self.pool.join(row, self.pool.default.draft)

    def leave(self, row: SequenceState) -> None:
        """Drop a row that has ended; see :meth:`osd.drafters.base.Drafting.leave`."""
        in_doubt = self.failures.doubtful.pop(row.request.id, None) is not None
        try:
            self.drafting.leave(row)
        except Exception as error:
            if not in_doubt:  # else it may know nothing of the row
                self._failed(error, [])
        if self.pool.has(row):
            self.pool.leave(row)

    def propose(self, request: DraftRequest) -> Draft:
        """Draft, as :meth:`osd.drafters.base.Drafting.propose`; nothing where the drafter raises, or rests."""
        self._asked = False
        if not self.failures.may_ask(self.name) or (self.failures.doubtful and not self._join_anew()):
            return empty_draft(len(request.rows), self.pool.device)
        try:
            draft = self.drafting.propose(request)
            if self.drafting is not self.pool:
                _require_sound(draft, request.gammas, self.pool.vocabulary)
        except Exception as error:
            self._failed(error, request.rows)
            return empty_draft(len(request.rows), self.pool.device)
        self.failures.note_success(self.name)
        self._asked = True
        return draft

    def commit(self, row: SequenceState, length_before: int, accepted: int, draft: Draft) -> None:
        """Note what was accepted; see :meth:`osd.drafters.base.Drafting.commit`."""
        if row.request.id in self.failures.doubtful:
            return
        try:
            self.drafting.commit(row, length_before, accepted, draft)
        except Exception as error:
            self._failed(error, [row])

    def measure(self, whole_ms: float) -> None:
        """Note the drafting time, where the drafter was asked; see :meth:`osd.drafters.base.Drafting.measure`."""
        try:
            if self._asked:
                self.drafting.measure(whole_ms)
        except Exception as error:
            self._failed(error, [])

    def version(self, row: SequenceState) -> str:
        """Return the name of what drafted for the row."""
        try:
            return self.drafting.version(row)
        except Exception as error:
            self._failed(error, [])
            return row.loaded.version

    def _failed(self, error: Exception, rows: Sequence[SequenceState]) -> None:
        self.failures.note_failure(self.name, error, rows)
        self.pool.forget(rows)

    def _join_anew(self) -> bool:
        """Let rows in doubt leave the drafter and join it with their texts so far; return whether all of them did."""
        rows = list(self.failures.doubtful.values())
        for row in rows:
            self.leave(row)
        for row in rows:
            row.drafter_seen = 0
            self.join(row, row.decision.draft)
        return not self.failures.doubtful


def _require_sound(draft: Draft, gammas: Sequence[int], vocabulary: int) -> None:
    """Check what the target is about to be fed. Raises BadProposal."""
    if draft.size and not bool(((draft.tokens >= 0) & (draft.tokens < vocabulary)).all()):
        raise BadProposal(reason=f"a token is outside the vocabulary of {vocabulary}")
    if draft.trees is None and draft.size > max(gammas):
        raise BadProposal(reason=f"{draft.size} tokens where {max(gammas)} were asked for")
