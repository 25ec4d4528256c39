"""The oracle of SpecDec++, Theorem 4.1: greedy decoding with every draft stopped just before its first rejection.

S is the set of positions at which the draft's first choice, given the true text, is not the text's token. Stopping
before each of them discards nothing and takes |S| + 1 target passes. Where the text's last token is itself in S, that
token comes from the last of the |S| passes and the text ends there, so it is |S|; the theorem counts one pass more,
which would begin the token after the end. A bound on a draft's length makes further passes of a long run.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.gamma.rounds import RecordedText
from osd.gamma.base import FixedBeforeRound, Observation
from storage.errors import BadInput


def oracle_lengths(trace: RecordedText, maximum: int) -> list[int]:
    """For each position, how many drafted tokens the target would accept there, at most ``maximum`` of the recorded
    chain, and never the text's last one, which the target's own pass gives. Raises BadInput for a sampled trace."""
    if not trace.greedy:
        raise BadInput(reason=f"An oracle knows greedy texts only; {trace.data_set} has one of {trace.temperature}.")
    return [min(match, trace.length - 1 - at, maximum) for at, match in enumerate(trace.matches().tolist())]


class OracleRow:
    """One request: where in its text it is."""

    __slots__ = ("_lengths", "_position")

    def __init__(self, lengths: Sequence[int]) -> None:
        self._lengths, self._position = lengths, 0

    @property
    def gamma(self) -> int:
        """The match length here; 0 past the recorded text."""
        return self._lengths[self._position] if self._position < len(self._lengths) else 0

    def observe(self, seen: Observation) -> None:
        """Advance by what was accepted and the target's own token."""
        self._position += seen.accepted + 1


class OracleController(FixedBeforeRound):
    """Gives each row the match length at its position, so that the oracle can run in an engine or a simulator.

    The k-th row started is trace k, so requests must be submitted in the traces' order, each once.
    """

    name: str = "oracle"

    def __init__(self, traces: Sequence[RecordedText], maximum: int) -> None:
        """``maximum``: tokens of a draft at most (an engine's ``gamma_max``, a trace's depth). Raises BadInput for a
        sampled trace."""
        self._waiting = iter([oracle_lengths(trace, maximum) for trace in traces])

    def start(self) -> OracleRow:
        """The next trace's row. Raises BadInput when there is none left."""
        lengths = next(self._waiting, None)
        if lengths is None:
            raise BadInput(reason="The oracle was given fewer traces than requests; it knows nothing about this one.")
        return OracleRow(lengths)

    def plan(
        self, rows: Sequence[OracleRow], rooms: Sequence[int], batch: int, unread: Sequence[int] = ()
    ) -> list[int]:
        """The match length at each row's position."""
        return [row.gamma for row in rows]
