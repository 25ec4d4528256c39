"""What recording costs a decode loop: one engine, its recorder there and not there by turns of a tenth of a second.

A machine's speed changes from second to second by more than recording costs, so a turn is a few rounds, is compared
with the one next to it, and which of the two comes first alternates. One engine takes both, in the middle of its
requests, so that texts, measured costs and what a controller makes of them are the same for both. The recorder's
thread writes as often as in a server, while it is recorded, and never while it is not; those turns are few and dear,
so they have a median of their own, and count as often as they come.

On a noisy machine that takes thousands of pairs to tell a percent. Hundreds do for two parts of it: what the decode
loop itself spends on recording, and what it waits while the recorder's thread has the interpreter, which is the
difference between its clock and its CPU time. What two busy cores take from each other is in neither.

Which rounds a turn happens to have, with how many rows and tokens drafted, moves its time by more than what is looked
for, so a turn is told by its seconds ÷ those of as many rounds of the same kinds.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from osd.bench.harness.prompts import Tokens
from osd.bench.harness.turns import median_error
from osd.bench.harness.watch import Watch
from osd.bench.plans import DecodePlan
from osd.engine.engine import Engine
from osd.models.pair import Pair
from osd.recording.recorder import Recorder
from osd.sequence import Completion
from storage.records import Request
from storage.settings import Settings
from storage.store import open_store

ROUNDS = 24
"""Rounds of a turn without recording."""
RECORDED = 3 * ROUNDS
"""Rounds of one with it: of what ends, three quarters are then recorded to the end, and what is written is nearly as
whole as in a server. Requests that are written in part cost nearly as much as whole ones."""
WARM = 8
"""Pairs of turns that are not counted: caches and cost tables."""
ONLY_WHEN_ASKED = {"flush_requests": 1 << 30, "flush_seconds": 1e9}


Kind = tuple[int, int]
"""A round's rows, and the most that one of them had drafted."""


class ComparedTurns(NamedTuple):
    """A pair of turns."""

    ratio: float
    """Seconds without ÷ with recording, each ÷ what rounds of the same kinds take."""
    wait: float
    """Share of its time that the decode loop waited with recording, less that without."""


@dataclass(slots=True)
class RecordedTurn:
    """Some rounds."""

    seconds: float = 0.0
    idle: float = 0.0
    """Those in which this thread had no processor."""
    rounds: list[tuple[Kind, float]] = field(default_factory=list)
    """Each one's seconds."""

    def slowness(self, usual: Mapping[Kind, float]) -> float:
        """Return its seconds ÷ those that rounds of these kinds usually take."""
        return self.seconds / sum(usual[kind] for kind, _ in self.rounds)


class TurnPair(NamedTuple):
    """Two turns beside each other."""

    without: RecordedTurn
    recorded: RecordedTurn
    wrote: bool
    """Whether the recorder's thread was asked to write."""

    def compared(self, usual: Mapping[Kind, float]) -> ComparedTurns:
        """Return how much the one differs from the other."""
        without, recorded = self.without, self.recorded
        wait = recorded.idle / recorded.seconds - without.idle / without.seconds
        return ComparedTurns(without.slowness(usual) / recorded.slowness(usual), wait)


def usual_seconds(turns: Iterable[RecordedTurn]) -> dict[Kind, float]:
    """Return the median of each kind's rounds, recorded or not."""
    seconds: dict[Kind, list[float]] = {}
    for kind, took in (timed for turn in turns for timed in turn.rounds):
        seconds.setdefault(kind, []).append(took)
    return {kind: statistics.median(each) for kind, each in seconds.items()}


@dataclass(slots=True)
class RecordingCost:
    """Turns decoded with and without recording, in pairs."""

    quiet: list[ComparedTurns] = field(default_factory=list)
    writing: list[ComparedTurns] = field(default_factory=list)
    """Those in which the recorder's thread was asked to write."""
    seconds: float = 0.0
    """Decoding with it, in all."""
    loop: float = 0.0
    """Seconds spent recording, in the decode loop."""
    beside: float = 0.0
    """CPU seconds of the recorder's own thread meanwhile."""

    def median(self, what: str) -> tuple[float, float]:
        """Return the median of a field of pairs and its standard error; pairs that wrote and pairs that did not have a
        median each, and count as often as they come."""
        kinds = [[getattr(pair, what) for pair in pairs] for pairs in (self.quiet, self.writing) if pairs]
        weights = [len(values) / (len(self.quiet) + len(self.writing)) for values in kinds]
        value = sum(weight * statistics.median(values) for weight, values in zip(weights, kinds, strict=True))
        errors = [weight * median_error(values) for weight, values in zip(weights, kinds, strict=True)]
        return value, math.hypot(*errors)

    def as_dict(self) -> dict[str, float]:
        """Return figures by the names that benches print: the share of throughput that is lost, the share of decode
        time in which the loop waited for the recorder's thread, the loop's part of decode time by the recorder's own
        clock, and CPU of its thread, which another core may have, by decode time."""
        (ratio, ratio_error), (wait, wait_error) = self.median("ratio"), self.median("wait")
        return {
            "recording_cost": 1 - ratio, "recording_cost_error": ratio_error,
            "recorder_share": self.loop / self.seconds, "recorder_wait": wait, "recorder_wait_error": wait_error,
            "recorder_share_beside": self.beside / self.seconds,
        }  # fmt: skip


def recording_cost(
    plan: DecodePlan, pair: Pair, prompts: Sequence[Tokens], settings: Settings, batch: int, watch: Watch
) -> RecordingCost:
    """Decode the plan's pairs of turns; prompts come round again when they are all used."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="osd-bench-")))
        changed = settings.changed(storage={"directory": folder, "url": None, **ONLY_WHEN_ASKED})
        store = stack.enter_context(open_store(changed))
        recorder = stack.enter_context(closing(Recorder(store, changed, "bench")))
        recorder.reducer.wait()  # what is compiled once is no part of what decoding costs
        engine = Engine(pair, settings.changed(serve={"max_batch": batch}))
        requests = (Request(prompt, max_new_tokens=plan.max_tokens) for prompt in cycle(prompts))
        turns = _RecordingTurns(engine, recorder, settings, requests)
        turns.take(WARM, Watch())
        begun = recorder.seconds, recorder.seconds_beside
        watch.begin(plan.recorded)
        watch.at(f"recording or not, batch {batch}")
        found = turns.take(plan.recorded, watch)
        found.loop, found.beside = recorder.seconds - begun[0], recorder.seconds_beside - begun[1]
    return found


class _RecordingTurns:
    """One engine's turns, without end."""

    def __init__(self, engine: Engine, recorder: Recorder, settings: Settings, requests: Iterator[Request]) -> None:
        self._engine, self._recorder, self._requests = engine, recorder, requests
        self._storage = settings.storage
        self._missed: list[Completion] = []
        """What ended while nothing was recorded: what is kept of it would wait for its end for ever."""
        self._unwritten, self._since = 0, 0.0
        """Requests that ended while recorded, and seconds recorded, since the recorder was last asked to write."""

    def take(self, pairs: int, watch: Watch) -> RecordingCost:
        """Take the next pairs."""
        both = []
        for index in range(pairs):
            without = None if index % 2 else self._rounds(RecordedTurn(), ROUNDS)
            recorded, wrote = self._recorded()
            both.append(TurnPair(without or self._rounds(RecordedTurn(), ROUNDS), recorded, wrote))
            watch.did()
        return _found(both)

    def _recorded(self) -> tuple[RecordedTurn, bool]:
        due = self._unwritten >= self._storage.flush_requests or self._since >= self._storage.flush_seconds
        with _heard_by(self._recorder, self._engine):
            begun = time.perf_counter()
            for completion in self._missed:
                self._recorder.finish(completion)
            if due:
                self._recorder.wait(0)
                self._unwritten, self._since = 0, 0.0
            turn = self._rounds(RecordedTurn(time.perf_counter() - begun), RECORDED)
        self._missed = []
        self._since += turn.seconds
        return turn, due

    def _rounds(self, turn: RecordedTurn, count: int) -> RecordedTurn:
        """Decode so many rounds into the turn, leaving out those that read a prompt, which are of all lengths."""
        while len(turn.rounds) < count:
            while self._engine.room > 0:
                self._engine.submit(next(self._requests))
            reads, rows = bool(self._engine.prefill_queue.rows), list(self._engine.rows)
            begun, worked = time.perf_counter(), time.thread_time()
            ended = [progress.completion for progress in self._engine.step() if progress.completion]
            if not reads:
                took, at_work = time.perf_counter() - begun, time.thread_time() - worked
                turn.seconds, turn.idle = turn.seconds + took, turn.idle + took - at_work
                turn.rounds.append(((len(rows), max(row.rounds[-1].drafted for row in rows)), took))
            self._note(ended)
        return turn

    def _note(self, ended: list[Completion]) -> None:
        if self._engine.recorder:
            self._unwritten += len(ended)
        else:
            self._missed += ended


@contextmanager
def _heard_by(recorder: Recorder, engine: Engine) -> Iterator[None]:
    """Let the engine record within the block."""
    engine.recorder = recorder
    try:
        yield
    finally:
        engine.recorder = None


def _found(both: Sequence[TurnPair]) -> RecordingCost:
    usual = usual_seconds(turn for pair in both for turn in (pair.without, pair.recorded))
    found = RecordingCost(seconds=sum(pair.recorded.seconds for pair in both))
    for pair in both:
        (found.writing if pair.wrote else found.quiet).append(pair.compared(usual))
    return found
