"""The interface of gamma rules: what a rule is given, and what it answers.

A rule starts a :class:`RowGamma` for every request that it serves. Each round goes

    gammas = controller.plan(rows, rooms, batch)          # 0: do not speculate
    ... one draft pass, then controller.should_continue(rows, drafted, signals), and so on ...
    ... one target pass over the batch ...
    row.observe(Observation(gamma, drafted, accepted))    # each row

and the engine tells the shared :class:`~osd.gamma.costs.model.CostModel` how long drafting and verifying took. Most
rules look at one request at a time: they are a RowGamma and a :class:`RowByRow` controller.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal, Protocol

from osd.gamma.costs.model import CostModel
from storage.settings import GammaSettings, Section

__all__ = [
    "TENANTS",
    "CostModel",
    "DraftDecision",
    "FixedBeforeRound",
    "GammaController",
    "GammaRule",
    "Observation",
    "RowByRow",
    "RowGamma",
    "Signal",
    "StoppableRow",
]

TENANTS = 128
"""Tenants of which it is remembered how drafts fared; who is away longest goes first."""
Signal = Literal["none", "confidence", "peak", "peak_token", "acceptance"]
"""What a gamma rule asks of each draft pass, a number in [0, 1] a row (all but ``none`` cost the engine a host sync).

``confidence``: the draft's probability of the token that it chose. ``peak``: its largest probability for that
token, known before one is drawn. ``peak_token``: that and which token it is, a pair. ``acceptance``: the acceptance
head's estimate for the token *before*, which the pass has just read (at a round's first pass: for the row's own last
token, and meaningless); NaN where no head is there yet."""


class DraftDecision(IntEnum):
    """How a row goes on after a draft pass."""

    DECLINE = 0
    """Without the token of this pass. Lossless while the answer depends on nothing that was drawn in this pass:
    on ``peak``, ``peak_token`` or ``acceptance``, never on ``confidence`` (docs/gamma.md)."""
    LAST = 1
    """With this token as the last."""
    ON = 2
    """With this token and further ones."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What a gamma rule learns after a round of one row."""

    gamma: int
    """Number of tokens asked for."""
    drafted: int
    """Tokens in fact drafted (fewer near a length limit or after an early stop)."""
    accepted: int
    """Drafted tokens that the target accepted."""
    text: Sequence[int] = ()
    """The row's tokens with its prompt, this round's included: ``accepted`` drafted ones and the target's own come
    last. The engine's own list, not a copy; empty where no tokens are at hand."""
    chances: Sequence[float] = ()
    """For a row that samples, Σ min(p, q) wherever a drafted token was verified, the first refused one included: how
    often a token drawn there is accepted, whichever it was. Empty where unknown, or where the outcome holds as much."""

    @property
    def rejected(self) -> bool:
        """Whether the target refused a drafted token: the indicator in Eq. 2 of on-the-fly adaptation."""
        return self.accepted < self.drafted


class RowGamma(Protocol):
    """A request's state with its gamma rule."""

    def next_gamma(self, batch: int) -> int:
        """Return the tokens to draft in the next round of a batch of ``batch`` rows; 0 means do not speculate."""

    def observe(self, seen: Observation) -> None:
        """Learn how the round went."""


class StoppableRow(RowGamma, Protocol):
    """A request's state with a rule that may stop drafting midway."""

    def keep_drafting(self, signal: float) -> DraftDecision:
        """Decide whether to go on after a draft pass with this signal."""


class GammaController(Protocol):
    """A gamma rule; shared by all requests of one engine that use it."""

    name: str
    signal: Signal

    def start(self) -> Any:
        """Return the state of a new request, as :meth:`plan` and :meth:`should_continue` take it, with ``observe``."""

    def plan(self, rows: Sequence[Any], rooms: Sequence[int], batch: int, unread: Sequence[int] = ()) -> list[int]:
        """Return the most tokens to draft for each row.

        ``rooms``: how many each has room for (the engine cuts what is more); ``batch``: rows that share the passes,
        those of other rules included; ``unread``: tokens of each row that the drafter must read before it can draft
        (left out: none).
        """

    def should_continue(self, rows: Sequence[Any], drafted: int, signals: Sequence[Any]) -> list[DraftDecision]:
        """Decide for each row that still drafts whether it goes on after draft pass number ``drafted``. Not called
        where ``signal`` is none. A rule whose ``reads_head`` is true is given the signal ``acceptance`` as well, as one
        more argument."""


class FixedBeforeRound:
    """A gamma rule that fixes gamma before the round, so that it asks no signal."""

    signal: Signal = "none"

    def should_continue(self, rows: Sequence[Any], drafted: int, signals: Sequence[Any]) -> list[DraftDecision]:
        """Let every row draft what was planned."""
        return [DraftDecision.ON] * len(rows)


class RowByRow(FixedBeforeRound):
    """A gamma rule whose rows decide for themselves."""

    def plan(self, rows: Sequence[RowGamma], rooms: Sequence[int], batch: int, unread: Sequence[int] = ()) -> list[int]:
        """Return each row's own gamma."""
        return [row.next_gamma(batch) for row in rows]

    def should_continue(
        self, rows: Sequence[StoppableRow], drafted: int, signals: Sequence[float]
    ) -> list[DraftDecision]:
        """Return each row's own answer, where the rule asks a signal."""
        if self.signal == "none":
            return super().should_continue(rows, drafted, signals)
        return [row.keep_drafting(signal) for row, signal in zip(rows, signals, strict=True)]


@dataclass(frozen=True, slots=True)
class GammaRule:
    """A value of ``gamma.rule``: an entry of the registry in :mod:`osd.gamma.factory`, or what a third party's package
    brings."""

    make: Callable[[GammaSettings, Any, CostModel], GammaController]
    """Makes a controller of ``[gamma]``, the rule's own table as ``settings`` has checked it, and what passes cost."""
    settings: type[Section] = Section
    """The settings in ``[gamma.NAME]``; left out: there are none."""
    weighs_costs: bool = False
    """Whether it weighs what passes cost. Trees then have the nodes that are worth their cost, with other rules all."""
    needs_head: bool = False
    """Whether it asks the draft's acceptance head (its signal is ``acceptance``): one is loaded, and trained."""
