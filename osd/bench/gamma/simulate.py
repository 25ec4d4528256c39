"""Replays traces under any controller and any costs, without a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from osd.bench.gamma.costs import CostTable
from osd.bench.gamma.rounds import Trace
from osd.gamma import CostModel, GammaController, Observation

Make = Callable[[CostModel], GammaController]
"""Makes a controller over the cost model that the simulator feeds: ``lambda costs: make_controller(settings, costs)``."""


@dataclass(slots=True)
class Simulated:
    """What a replay counted. Rounds and tokens are sums over requests, steps and passes those of the batch."""

    emitted: int = 0
    """Tokens of the texts."""
    rounds: int = 0
    """Rounds of single requests: each is a request's share in one target pass (N_target)."""
    drafted: int = 0
    accepted: int = 0
    steps: int = 0
    """Target passes over the batch."""
    draft_passes: int = 0
    """Draft passes over the batch."""
    draft_ms: float = 0.0
    verify_ms: float = 0.0
    decision_seconds: float = 0.0
    """Real seconds spent in plan, steer and observe."""
    gammas: Counter[int] = field(default_factory=Counter)
    """How many rounds drafted so many tokens."""
    by_request: list[list[Observation]] = field(default_factory=list)
    """The rounds of each trace, in the traces' order."""
    request_ms: list[tuple[float, float]] = field(default_factory=list)
    """Drafting and verifying milliseconds of each trace: its share of its batches' times."""

    @property
    def tokens_per_second(self) -> float:
        """Emitted tokens a simulated second."""
        raise NotImplementedError

    @property
    def discard_rate(self) -> float:
        """See :func:`osd.bench.gamma.time_model.discard_rate`."""
        raise NotImplementedError

    @property
    def verification_rate(self) -> float:
        """See :func:`osd.bench.gamma.time_model.verification_rate`."""
        raise NotImplementedError

    @property
    def decision_us(self) -> float:
        """Real microseconds of deciding a round of a request."""
        raise NotImplementedError


class Simulator:
    """An engine's loop around one controller, with a table instead of a clock and traces instead of models.

    It lives on between calls as an engine does: what the controller learned stays.
    """

    def __init__(self, make: Make, table: CostTable, *, batch: int = 1, noise: float = 0.0, seed: int = 0) -> None:
        """``noise``: standard deviation of the logarithm of each simulated timing ÷ the table's; ``seed``: of the
        noise, and of the coins of sampled traces."""
        raise NotImplementedError

    def run(self, traces: Sequence[Trace]) -> Simulated:
        """Serve the traces in order, at most ``batch`` at a time. Raises BadInput when the controller asks for a signal
        that was not recorded, or for more tokens than a chain has."""
        raise NotImplementedError


def simulate(
    traces: Sequence[Trace], make: Make, table: CostTable, *, batch: int = 1, noise: float = 0.0, seed: int = 0
) -> Simulated:
    """One replay by a fresh controller. Raises as :meth:`Simulator.run`."""
    return Simulator(make, table, batch=batch, noise=noise, seed=seed).run(traces)
