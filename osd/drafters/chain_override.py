"""Overrides of a causal drafter's chain: another source may put its tokens in place of the draft's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor

from osd.gamma.base import Signal
from osd.sequence import SequenceState


class PassSignals(Protocol):
    """Signals of a draft pass, read by gamma rules."""

    def read(self, signal: Signal) -> list[Any]:
        """Return one number a row, on the host; for ``peak_token``, a pair."""
        ...


class ChainOverride(Protocol):
    """Override of the chains of one draft's rows in one round. Each token begins with :meth:`needs_draft`."""

    def needs_draft(self, going: Sequence[bool]) -> bool:
        """Return whether the draft has to be asked for the next token of the rows that are going on."""
        ...

    def put_in(self) -> tuple[list[int], PassSignals]:
        """Return the next tokens where the draft was not asked, and their signals."""
        ...

    def overrule(self, chosen: Tensor, q: Tensor | None, signals: PassSignals) -> tuple[Tensor, PassSignals]:
        """Return what is drafted in place of the tokens (B,) that the draft chose, and the signals that gamma rules
        see.

        Rows of ``q`` (B, V), which the draft drew from, become certain of a token that is put in; so which rows are
        overruled, and by what, must not depend on what was drawn in this pass.
        """
        ...


Begin = Callable[[Sequence[SequenceState], int], ChainOverride]
"""Takes the rows that are about to draft, and the most tokens of each; returns their override."""
