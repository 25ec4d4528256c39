"""How long should the next draft be? What a gamma controller is told, and what it answers.

A controller belongs to one engine, and starts a :class:`RowGamma` for every request. Each round goes

    gamma = row.next_gamma(batch)          # 0: do not speculate
    ... draft, asking row.keep_drafting(confidence) after each token where row.wants_confidence ...
    ... one target pass over the batch ...
    row.observe(Observation(gamma, drafted, accepted))

and the engine tells the shared :class:`~osd.gamma.costs.CostModel` how long drafting and verifying took.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from osd.gamma.costs import CostModel

__all__ = ["CostModel", "GammaController", "Observation", "RowGamma"]


@dataclass(frozen=True, slots=True)
class Observation:
    """What a controller learns after a round of one row."""

    gamma: int
    """Tokens asked for."""
    drafted: int
    """Tokens in fact drafted (fewer near a length limit or after an early stop)."""
    accepted: int
    """Drafted tokens that the target accepted."""

    @property
    def rejected(self) -> bool:
        """Whether the target refused a drafted token: the indicator in Eq. 2 of on-the-fly adaptation."""
        return self.accepted < self.drafted


class RowGamma(Protocol):
    """The state of one request."""

    wants_confidence: bool
    """Whether :meth:`keep_drafting` must be asked after each token (it costs the engine a host sync)."""

    def next_gamma(self, batch: int) -> int:
        """Tokens to draft in the next round of a batch of so many rows; 0 means do not speculate."""
        ...

    def keep_drafting(self, confidence: float) -> bool:
        """Whether to go on after a token that the draft itself gave this probability."""
        ...

    def observe(self, seen: Observation) -> None:
        """How the round went."""
        ...


class GammaController(Protocol):
    """A way to size drafts; shared by all requests of one engine."""

    name: str

    def start(self) -> RowGamma:
        """The state of a new request."""
        ...
