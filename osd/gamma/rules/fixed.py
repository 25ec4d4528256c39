"""The fixed gamma rule: the same gamma every round."""

from __future__ import annotations

from osd.gamma.base import Observation, RowByRow


class FixedRow:
    """State of one request: its gamma."""

    __slots__ = ("_gamma",)

    def __init__(self, gamma: int) -> None:
        self._gamma = gamma

    def next_gamma(self, batch: int) -> int:
        """Return the fixed gamma; see :class:`~osd.gamma.base.RowGamma`."""
        return self._gamma

    def observe(self, seen: Observation) -> None:
        """Do nothing: nothing is learned."""


class FixedController(RowByRow):
    """The fixed gamma rule: ``gamma`` tokens every round; 0 is plain decoding with the target alone."""

    name: str = "fixed"

    def __init__(self, gamma: int) -> None:
        self._gamma = gamma

    def start(self) -> FixedRow:
        """Return the state of a new request."""
        return FixedRow(self._gamma)
