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
"""Takes the rows, the lengths of their drafts (which it may shorten), the number of tokens drafted, and a function that
reads the newest one's signals: :meth:`osd.gamma.planner.GammaPlanner.should_continue`."""


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
        """Draft up to ``gammas[i]`` tokens for row i; in a batch that samples, ``chance`` (B, G or more) are uniforms.

        ``should_continue`` decides after every pass which rows stop.
        """
        ...

    def commit(self, row: SequenceState, length_before: int, accepted: int, draft: Draft) -> None:
        """Note that the target accepted ``accepted`` of the row's drafted tokens."""
        ...

    def move_row(self, source: int, target: int, row: SequenceState) -> None:
        """Move a row to another place in the batch."""
        ...


class Drafting(Protocol):
    """What the engine drafts with: it assigns drafts to rows and proposes tokens for them."""

    def join(self, row: SequenceState, draft: str) -> None:
        """Assign a draft to a new row, for its life."""
        ...

    def leave(self, row: SequenceState) -> None:
        """Drop a row that has ended."""
        ...

    def propose(
        self,
        rows: Sequence[SequenceState],
        gammas: Sequence[int],
        warp: Warp | None,
        chance: Tensor | None,
        should_continue: ShouldContinue,
    ) -> Draft:
        """Draft as :meth:`Drafter.propose`; in a tree, ``gammas[i]`` is the depth."""
        ...

    def commit(self, row: SequenceState, length_before: int, accepted: int, draft: Draft) -> None:
        """Note what was accepted, as :meth:`Drafter.commit`; the row has its new tokens already."""
        ...

    def measure(self, whole_ms: float) -> None:
        """Note that the newest round's drafting took ``whole_ms`` milliseconds."""
        ...

    def version(self, row: SequenceState) -> str:
        """Return the name of what drafted for the row."""
        ...
