"""Counts what a controller's decisions cost, and what an engine's passes come to."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from osd.gamma import CostModel, GammaController, Go, Observation, Signal


class TimedRow:
    """A request's state; what it learns is timed."""

    __slots__ = ("_timed", "inner")

    def __init__(self, inner: Any, timed: Timed) -> None:
        self.inner, self._timed = inner, timed

    def observe(self, seen: Observation) -> None:
        """How the round went."""
        begun = time.thread_time_ns()
        self.inner.observe(seen)
        self._timed.spent_ns += time.thread_time_ns() - begun


class Timed:
    """A controller that answers as the one inside it, and keeps count of the time that answering takes."""

    def __init__(self, inner: GammaController) -> None:
        self.inner = inner
        self.name = inner.name
        self.signal: Signal = inner.signal
        self.spent_ns = 0
        """Nanoseconds of processor time in plan, steer and observe: what other processes take is left out."""
        self.decisions = 0
        """Rounds of single requests that were decided."""

    def start(self) -> TimedRow:
        """The state of a new request."""
        return TimedRow(self.inner.start(), self)

    def plan(self, rows: Sequence[TimedRow], rooms: Sequence[int], batch: int, unread: Sequence[int] = ()) -> list[int]:
        """Tokens to draft at most, a row."""
        states = [row.inner for row in rows]
        begun = time.thread_time_ns()
        gammas = self.inner.plan(states, rooms, batch, unread)
        self.spent_ns += time.thread_time_ns() - begun
        self.decisions += len(states)
        return gammas

    def steer(self, rows: Sequence[TimedRow], drafted: int, signals: Sequence[float]) -> list[Go]:
        """Which rows go on."""
        states = [row.inner for row in rows]
        begun = time.thread_time_ns()
        answers = self.inner.steer(states, drafted, signals)
        self.spent_ns += time.thread_time_ns() - begun
        return answers


class CountedCosts(CostModel):
    """A cost model that counts passes, and passes every timing on to one that hears of all contenders."""

    def __init__(self, everyone: CostModel) -> None:
        super().__init__()
        self._everyone = everyone
        self.draft_passes = 0
        self.target_passes = 0
        self.clock_ms = 0.0
        """All drafting and verifying, milliseconds."""

    def observe_draft(self, batch: int, steps: int, ms: float) -> None:
        """See :class:`~osd.gamma.costs.CostModel`."""
        super().observe_draft(batch, steps, ms)
        self.draft_passes += steps
        self.clock_ms += ms
        self._everyone.unread = self.unread
        self._everyone.observe_draft(batch, steps, ms)

    def observe_verify(self, batch: int, tokens: int, ms: float) -> None:
        """See :class:`~osd.gamma.costs.CostModel`."""
        super().observe_verify(batch, tokens, ms)
        self.target_passes += 1
        self.clock_ms += ms
        self._everyone.observe_verify(batch, tokens, ms)
