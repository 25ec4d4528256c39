"""What one round asks of a drafter, and what a drafter is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from osd.draft import Draft
from osd.gamma.base import Signal
from osd.gamma.planner import Read
from osd.sequence import SequenceState
from osd.verification.warping import Warp

ShouldContinue = Callable[[Sequence[SequenceState], list[int], int, Read], None]
"""Takes the rows, the lengths of their drafts (which it may shorten), the number of tokens drafted, and a function that
reads the newest one's signals: :meth:`osd.gamma.planner.GammaPlanner.should_continue`."""


class PassSignals(Protocol):
    """Signals of a draft pass, read by gamma rules."""

    def read(self, signal: Signal) -> list[Any]:
        """Return one number a row, on the host; for ``peak_token``, a pair."""


class ChainOverride(Protocol):
    """Puts other tokens into the chains of one draft's rows in one round. Each token begins with
    :meth:`needs_draft`."""

    def needs_draft(self, going: Sequence[bool]) -> bool:
        """Return whether the draft has to be asked for the next token of the rows that are going on."""

    def put_in(self) -> tuple[list[int], PassSignals]:
        """Return the next tokens where the draft was not asked, and their signals."""

    def overrule(self, chosen: Tensor, q: Tensor | None, signals: PassSignals) -> tuple[Tensor, PassSignals]:
        """Return what is drafted in place of the tokens (B,) that the draft chose, and the signals that gamma rules
        see.

        Rows of ``q`` (B, V), which the draft drew from, become certain of a token that is put in; so which rows are
        overruled, and by what, must not depend on what was drawn in this pass.
        """


MakeOverride = Callable[[Sequence[SequenceState], int], ChainOverride]
"""Takes the rows that are about to draft, and the most tokens of each; returns their override."""


class TreeShape(NamedTuple):
    """How large trees may be."""

    nodes: int
    """Drafted tokens of a row at most."""
    bar: float
    """Chance that nodes needed lately to be worth their verification; 0 for no bound."""


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """What one round asks of a drafter, for B rows."""

    rows: Sequence[SequenceState]
    gammas: Sequence[int]
    """(B,) most tokens to draft; in a tree, its depth."""
    should_continue: ShouldContinue
    """Decides after every pass which rows stop."""
    places: Sequence[int]
    """(B,) the rows' places in the batch, and so in the target's cache."""
    warp: Warp | None = None
    """Their sampling settings; None in a batch that is all greedy."""
    chance: Tensor | None = None
    """(B, max γ or more) uniforms to draw tokens by; None in a batch that is all greedy."""
    most_read: int | None = None
    """Most tokens of a row that a draft prefills now; a row that has more unread drafts nothing yet. None: all."""
    override: MakeOverride | None = None
    """Makes what may put other tokens into the drafts' chains; None where nothing may."""
    tree: TreeShape | None = None
    """Drafts that can draft trees draft such; None where all draft chains."""

    @property
    def sampled(self) -> bool:
        """Whether any row of the batch samples."""
        return self.warp is not None

    def select(self, rows: Sequence[SequenceState], indices: Sequence[int]) -> DraftRequest:
        """Return the request for some of the rows, in this order; ``indices`` are theirs in this request."""
        return replace(
            self,
            rows=rows,
            gammas=[self.gammas[i] for i in indices],
            places=[self.places[i] for i in indices],
            warp=None if self.warp is None else self.warp.take(indices),
            chance=None if self.chance is None else self.chance[torch.tensor(indices, device=self.chance.device)],
        )

    def on(self, device: torch.device) -> DraftRequest:
        """Return the same for a draft on another device."""
        if self.warp is None or self.chance is None:
            return self
        return replace(self, warp=self.warp.on(device), chance=self.chance.to(device))


class Drafting(Protocol):
    """What the engine drafts with: it assigns drafts to rows and proposes tokens for them."""

    def join(self, row: SequenceState, draft: str) -> None:
        """Assign a draft to a new row, for its life."""

    def leave(self, row: SequenceState) -> None:
        """Drop a row that has ended."""

    def propose(self, request: DraftRequest) -> Draft:
        """Draft up to γ tokens for each row."""

    def commit(self, row: SequenceState, length_before: int, accepted: int, draft: Draft) -> None:
        """Note that the target accepted ``accepted`` of the row's drafted tokens; the row has its new tokens
        already."""

    def measure(self, whole_ms: float) -> None:
        """Note that the newest round's drafting took ``whole_ms`` milliseconds."""

    def version(self, row: SequenceState) -> str:
        """Return the name of what drafted for the row."""
