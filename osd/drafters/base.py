"""What a drafter is: it proposes tokens, and the probabilities it drew them from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from osd.draft import Draft
from osd.gamma.planner import Read
from osd.sequence import SequenceState
from osd.verification.warping import Warp

ShouldContinue = Callable[[Sequence[SequenceState], list[int], int, Read], None]
"""Rows, the lengths of their drafts (to be shortened), the tokens drafted, a way to read the newest one's signals:
:meth:`osd.gamma.planner.GammaPlanner.steer`."""


class Drafter(Protocol):
    """Proposes tokens."""

    def propose(
        self,
        rows: Sequence[SequenceState],
        gammas: Sequence[int],
        warp: Warp | None,
        chance: Tensor | None,
        should_continue: ShouldContinue,
    ) -> Draft:
        """Up to ``gammas[i]`` tokens for row i; in a batch that samples, ``chance`` (B, G or more) uniforms.
        ``steer`` is asked after every pass which rows stop."""
        ...

    def commit(self, row: SequenceState, length_before: int, accepted: int, draft: Draft) -> None:
        """The target accepted so many of the row's drafted tokens."""
        ...

    def move_row(self, source: int, target: int, row: SequenceState) -> None:
        """The row takes another place in the batch."""
        ...


class Drafting(Protocol):
    """What the engine asks for drafts, and tells of its rows."""

    def join(self, row: SequenceState, draft: str) -> None:
        """The row has come: seat it with a draft, for its life."""
        ...

    def leave(self, row: SequenceState) -> None:
        """The row has ended."""
        ...

    def propose(
        self,
        rows: Sequence[SequenceState],
        gammas: Sequence[int],
        warp: Warp | None,
        chance: Tensor | None,
        should_continue: ShouldContinue,
    ) -> Draft:
        """See :meth:`Drafter.propose`; of a tree, ``gammas[i]`` is the depth."""
        ...

    def commit(self, row: SequenceState, length_before: int, accepted: int, draft: Draft) -> None:
        """See :meth:`Drafter.commit`; the row has its new tokens already."""
        ...

    def measure(self, whole_ms: float) -> None:
        """The newest round's drafts took so many milliseconds."""
        ...

    def version(self, row: SequenceState) -> str:
        """Who drafted for the row."""
        ...
