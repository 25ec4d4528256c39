"""What a causal drafter asks when somebody may put other tokens into its chain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor

from osd.gamma.base import Signal
from osd.sequence import SequenceState


class Reads(Protocol):
    """What a draft pass can tell the controllers."""

    def read(self, signal: Signal) -> list[Any]:
        """One number a row, on the host; of ``peak_echo``, one :data:`~osd.gamma.goodput.contexts.Peak`."""
        ...


class ChainOverride(Protocol):
    """One round of one draft's rows. Each token of their chains begins with :meth:`needs_draft`."""

    def needs_draft(self, going: Sequence[bool]) -> bool:
        """Whether the draft has to be asked for the next token of the rows that are going on."""
        ...

    def put_in(self) -> tuple[list[int], Reads]:
        """The next tokens where it was not asked."""
        ...

    def overrule(self, chosen: Tensor, q: Tensor | None, signals: Reads) -> tuple[Tensor, Reads]:
        """What is drafted in place of the tokens (B,) that the draft chose, and what controllers are told of it.

        Rows of ``q`` (B, V), which the draft drew from, become certain of a token that is put in; so which rows are
        overruled, and by what, must not hang on what was drawn in this pass.
        """
        ...


Begin = Callable[[Sequence[SequenceState], int], ChainOverride]
"""Rows that are about to draft so many tokens each at most."""
