"""The oracle of SpecDec++, Theorem 4.1: greedy decoding with every draft stopped just before its first rejection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from osd.bench.gamma.rounds import Trace
from osd.gamma import Go, Observation


@dataclass(frozen=True, slots=True)
class OracleCounts:
    """What the oracle does for one or several texts; nothing is discarded, so accepted equals drafted."""

    emitted: int
    rounds: int
    """Target passes, a request at a time (N_target)."""
    drafted: int

    def tokens_per_second(self, draft_ms: float, target_ms: float) -> float:
        """Eq. 3.1 with these counts, from the measured milliseconds of a draft pass and of a target pass."""
        raise NotImplementedError


def oracle(traces: Sequence[Trace], maximum: int | None = None) -> OracleCounts:
    """The oracle's counts; drafts of at most ``maximum`` tokens (None: as long as they match, as in the theorem).

    Raises BadInput for a sampled trace.
    """
    raise NotImplementedError


class OracleRow:
    """One request: where in its text it is."""

    position: int

    def observe(self, seen: Observation) -> None:
        """Advance by what was accepted and the target's own token."""
        raise NotImplementedError


class OracleController:
    """Gives each row the match length at its position, so that the oracle can run in an engine or a simulator.

    The k-th row started is trace k, so requests must be submitted in the traces' order, each once.
    """

    name: str = "oracle"
    signal: Literal["none"] = "none"

    def __init__(self, traces: Sequence[Trace], maximum: int | None = None) -> None:
        """``maximum``: tokens of a draft at most (an engine's ``gamma_max``). Raises BadInput for a sampled trace."""
        raise NotImplementedError

    def start(self) -> OracleRow:
        """The next trace's row. Raises BadInput when there is none left."""
        raise NotImplementedError

    def plan(self, rows: Sequence[OracleRow], rooms: Sequence[int], batch: int) -> list[int]:
        """The match length at each row's position."""
        raise NotImplementedError

    def steer(self, rows: Sequence[OracleRow], drafted: int, signals: Sequence[float]) -> list[Go]:
        """Never asked."""
        raise NotImplementedError
