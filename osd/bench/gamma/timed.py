"""Counts what a controller's decisions cost, and what an engine's passes come to."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from osd.gamma.base import CostModel, DraftDecision, GammaController, Observation, Signal
from osd.gamma.costs.model import nearly


class TimedRow:
    """A request's state; what it learns is timed."""

    __slots__ = ("_timed", "inner")

    def __init__(self, inner: Any, timed: Timed) -> None:
        self.inner, self._timed = inner, timed

    def observe(self, seen: Observation) -> None:
        """How the round went."""
        before, begun = time.thread_time_ns(), time.thread_time_ns()
        self.inner.observe(seen)
        self._timed.took(before, begun)


class Timed:
    """A controller that answers as the one inside it, and keeps count of the time that answering takes."""

    def __init__(self, inner: GammaController) -> None:
        self.inner = inner
        self.name = inner.name
        self.signal: Signal = inner.signal
        self.spent_ns = 0
        """Nanoseconds of processor time in plan, steer and observe: what other processes take is left out, and what it
        takes to read the clock."""
        self.decisions = 0
        """Answers to single requests: how far to draft, and after each token whether to go on."""
        self.started = 0
        """Requests."""

    def start(self) -> TimedRow:
        """The state of a new request."""
        self.started += 1
        return TimedRow(self.inner.start(), self)

    def took(self, before: int, begun: int) -> None:
        """A call that has just ended, whose clock was read twice at its beginning: from one reading to the next lies a
        reading, and a call that does next to nothing may seem shorter than it."""
        self.spent_ns += max(0, time.thread_time_ns() - begun - (begun - before))

    def plan(self, rows: Sequence[TimedRow], rooms: Sequence[int], batch: int, unread: Sequence[int] = ()) -> list[int]:
        """Tokens to draft at most, a row."""
        states = [row.inner for row in rows]
        before, begun = time.thread_time_ns(), time.thread_time_ns()
        gammas = self.inner.plan(states, rooms, batch, unread)
        self.took(before, begun)
        self.decisions += len(states)
        return gammas

    def should_continue(self, rows: Sequence[TimedRow], drafted: int, signals: Sequence[Any]) -> list[DraftDecision]:
        """Which rows go on."""
        states = [row.inner for row in rows]
        before, begun = time.thread_time_ns(), time.thread_time_ns()
        answers = self.inner.should_continue(states, drafted, signals)
        self.took(before, begun)
        self.decisions += len(states)
        return answers


class Rounds:
    """How long rounds took, from the end of the one before, the time of decisions left out.

    The round in which a request comes in also read its prompt: of it is kept only what kind it was.
    """

    def __init__(self) -> None:
        self.took: dict[str, list[float]] = {}
        """Milliseconds, by kind."""
        self.first: dict[str, int] = {}
        """Rounds in which a request came in, by kind."""
        self.texts: list[dict[str, int]] = []
        """Rounds by kind, of one text after another; of a batch of several, of those that ran between two arrivals."""
        self._at = self._decided = self._started = 0

    def add(self, kind: str, timed: Timed) -> None:
        """A round has ended."""
        now, decided = time.perf_counter_ns(), timed.spent_ns
        if timed.started != self._started:
            self.first[kind] = self.first.get(kind, 0) + 1
            self.texts.append({})
        else:
            self.took.setdefault(kind, []).append(round((now - self._at - decided + self._decided) / 1e6, 4))
        self.texts[-1][kind] = self.texts[-1].get(kind, 0) + 1
        self._at, self._decided, self._started = time.perf_counter_ns(), decided, timed.started


class CountedCosts(CostModel):
    """A cost model that counts passes, and passes the timings of whole batches on to one that hears of all contenders:
    what few rows take in an engine of many is not what they take in one of few."""

    def __init__(self, everyone: CostModel, batch: int) -> None:
        """``batch``: rows of a whole one."""
        super().__init__()
        self._everyone, self._whole = everyone, batch
        self.timed: Timed | None = None
        """The controller whose rounds these are."""
        self.by_kind = Rounds()
        self.draft_passes = 0
        self.target_passes = 0
        self.clock_ms = 0.0
        """All drafting and verifying, milliseconds."""
        self._drafted = (0, 0)
        """Counts of the round under way: draft passes, tokens that the drafter had to read first."""

    def observe_draft(self, batch: int, steps: int, ms: float) -> None:
        """See :class:`~osd.gamma.costs.model.CostModel`."""
        super().observe_draft(batch, steps, ms)
        self.draft_passes += steps
        self.clock_ms += ms
        self._drafted = steps, nearly(self.unread)
        if batch == self._whole:
            self._everyone.unread = self.unread
            self._everyone.observe_draft(batch, steps, ms)

    def observe_verify(self, batch: int, tokens: int, ms: float) -> None:
        """See :class:`~osd.gamma.costs.model.CostModel`."""
        super().observe_verify(batch, tokens, ms)
        self.target_passes += 1
        self.clock_ms += ms
        if batch == self._whole:
            self._everyone.observe_verify(batch, tokens, ms)
        if self.timed:
            steps, unread = self._drafted
            self.by_kind.add(f"{batch},{steps},{nearly(tokens)},{unread}", self.timed)
        self._drafted = 0, 0
