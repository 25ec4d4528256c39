"""How long should the next draft be? What a gamma controller is told, and what it answers.

A controller starts a :class:`RowGamma` for every request that it serves. Each round goes

    gammas = controller.plan(rows, rooms, batch)          # 0: do not speculate
    ... one draft pass, then controller.steer(rows, drafted, signals), and so on ...
    ... one target pass over the batch ...
    row.observe(Observation(gamma, drafted, accepted))    # each row

and the engine tells the shared :class:`~osd.gamma.costs.model.CostModel` how long drafting and verifying took. Most
rules look at one request at a time: they are a RowGamma and a :class:`RowByRow` controller.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal, Protocol

from osd.gamma.costs.model import CostModel

__all__ = [
    "CostModel",
    "GammaController",
    "Go",
    "Observation",
    "RowByRow",
    "RowGamma",
    "Settled",
    "Signal",
    "SteeredRow",
]

Signal = Literal["none", "confidence", "peak", "peak_echo", "acceptance"]
"""What a controller asks of each draft pass, a number in [0, 1] a row (all but ``none`` cost the engine a host sync).

``confidence``: the draft's probability of the token that it chose. ``peak``: its largest probability for that
token, known before one is drawn. ``peak_echo``: that, below 1, and 1 more where the request's own text said the draft's
likeliest token after the same two before (:mod:`osd.gamma.goodput.repeats`); a
:data:`~osd.gamma.goodput.contexts.Peak`. ``acceptance``: the acceptance head's estimate for the token *before*, which
the pass has just read (at a round's first pass: for the row's own last token, and meaningless); NaN where no head is
there yet."""


class Go(IntEnum):
    """How a row goes on after a draft pass."""

    DECLINE = 0
    """Without the token of this pass. Lossless while the answer hangs on nothing that was drawn in this pass:
    on ``peak``, ``peak_echo`` or ``acceptance``, never on ``confidence`` (docs/gamma.md)."""
    LAST = 1
    """With it, and no further."""
    ON = 2
    """With it, and on."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What a controller learns after a round of one row."""

    gamma: int
    """Tokens asked for."""
    drafted: int
    """Tokens in fact drafted (fewer near a length limit or after an early stop)."""
    accepted: int
    """Drafted tokens that the target accepted."""
    text: Sequence[int] = ()
    """The row's tokens with its prompt, this round's included: ``accepted`` drafted ones and the target's own come
    last. The engine's own list, not a copy; empty from those that have no tokens at hand."""
    chances: Sequence[float] = ()
    """Of a row that samples, Σ min(p, q) wherever a drafted token was judged, the first refused one included: how often
    a token drawn there is accepted, whichever was. Empty where that is not known, or what it was says it all."""

    @property
    def rejected(self) -> bool:
        """Whether the target refused a drafted token: the indicator in Eq. 2 of on-the-fly adaptation."""
        return self.accepted < self.drafted


class RowGamma(Protocol):
    """The state of one request."""

    def next_gamma(self, batch: int) -> int:
        """Tokens to draft in the next round of a batch of so many rows; 0 means do not speculate."""
        ...

    def observe(self, seen: Observation) -> None:
        """How the round went."""
        ...


class SteeredRow(RowGamma, Protocol):
    """The state of one request that may stop in mid-draft."""

    def keep_drafting(self, signal: float) -> Go:
        """Whether to go on after a draft pass with this signal."""
        ...


class GammaController(Protocol):
    """A way to size drafts; shared by all requests of one engine that use it."""

    name: str
    signal: Signal

    def start(self) -> Any:
        """The state of a new request: what :meth:`plan` and :meth:`steer` are given, with ``observe``."""
        ...

    def plan(self, rows: Sequence[Any], rooms: Sequence[int], batch: int, unread: Sequence[int] = ()) -> list[int]:
        """Tokens to draft at most, a row. ``rooms``: how many each has room for (the engine cuts what is more);
        ``batch``: rows that share the passes, those of other controllers included; ``unread``: tokens that the
        drafter must read before it can draft, a row (left out: none)."""
        ...

    def should_continue(self, rows: Sequence[Any], drafted: int, signals: Sequence[Any]) -> list[Go]:
        """Of the rows that still draft, which go on after their draft pass number ``drafted``. Not asked
        where ``signal`` is none."""
        ...


class Settled:
    """A controller that settles gamma before the round, so that it asks no signal."""

    signal: Signal = "none"

    def should_continue(self, rows: Sequence[Any], drafted: int, signals: Sequence[Any]) -> list[Go]:
        """Every row drafts what was planned."""
        return [Go.ON] * len(rows)


class RowByRow(Settled):
    """A controller whose rows decide for themselves."""

    def plan(self, rows: Sequence[RowGamma], rooms: Sequence[int], batch: int, unread: Sequence[int] = ()) -> list[int]:
        """Each row's own gamma."""
        return [row.next_gamma(batch) for row in rows]

    def should_continue(self, rows: Sequence[SteeredRow], drafted: int, signals: Sequence[float]) -> list[Go]:
        """Each row's own answer, where the controller asks a signal."""
        if self.signal == "none":
            return super().should_continue(rows, drafted, signals)
        return [row.keep_drafting(signal) for row, signal in zip(rows, signals, strict=True)]
