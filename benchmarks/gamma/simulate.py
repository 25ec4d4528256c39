"""Replays traces under any controller and any costs, without a model.

The loop is the engine's (osd/engine/engine.py): rows are planned, asked to go on, and observed through the same
:class:`~osd.gamma.planner.GammaPlanner`, join as others leave, and a leaving row's place is taken by the last. A cost
table stands where the clock was, and what it says also feeds the cost model that the controller looks into. So for
greedy traces each request's rounds come out as the engine's own, as long as the controller does not look at costs;
where it does, they are those of an engine on the machine that the table describes.

A target pass is charged by the tokens in it, γ_i + 1 of each row. The target's reading of prompts is not charged.
"""

from __future__ import annotations

import math
import random
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

from benchmarks.gamma.costs import CostTable
from benchmarks.gamma.measured import DecodeCounts
from benchmarks.gamma.rounds import RecordedText
from osd.gamma.base import CostModel, GammaController, Observation, Signal
from osd.gamma.costs.model import probe as time_passes
from osd.gamma.factory import make_controller
from osd.gamma.planner import GammaPlanner
from osd.sequence import LAG
from storage.errors import BadInput
from storage.settings import Settings

Make = Callable[[CostModel], GammaController]
"""Makes a controller over the cost model that the simulator feeds."""


def maker_of(settings: Settings, name: str, initial: int, most: int, tables: Mapping[str, Any] | None = None) -> Make:
    """Return what makes the controller of a rule. ``most``: tokens of a draft at most; ``tables``: settings of rules,
    as ``{"gammatune": {"eta": 0.5}}``. Raises BadSetting."""
    own = {"max": most, "initial": min(initial, most), "routes": {}, **(tables or {})}
    gamma = settings.changed(gamma=own).gamma
    return lambda costs: make_controller(gamma, costs, name)


def observe_draft(costs: CostModel, rows: int, passes: int, unread: int, ms: float) -> None:
    """Tell a cost model what a draft took before which so many tokens had to be read."""
    costs.unread = unread
    costs.observe_draft(rows, passes, ms)


@dataclass(slots=True, kw_only=True)
class Simulated(DecodeCounts):
    """What a replay counted; its milliseconds are the table's."""

    draft_ms: float = 0.0
    verify_ms: float = 0.0
    by_request: list[list[Observation]] = field(default_factory=list)
    """The rounds of each trace, in the traces' order; the text of all of them is the whole."""

    @property
    def tokens_per_second(self) -> float:
        """Emitted tokens a simulated second."""
        return 1e3 * self.tokens / self.clock_ms if self.clock_ms else 0.0

    def add_passes(self, passes: int, draft_ms: float, verify_ms: float) -> None:
        """Add the passes of a round over the batch."""
        self.add_draft(passes, draft_ms)
        self.add_target(verify_ms)
        self.draft_ms, self.verify_ms = self.draft_ms + draft_ms, self.verify_ms + verify_ms

    def add_seen(self, request: int, seen: Observation, tokens: int) -> None:
        """Add a request's round, which brought so many tokens of its text."""
        self.add_round(seen.drafted, seen.accepted)
        self.tokens += tokens
        self.by_request[request].append(seen)


class _Row:
    """One trace while it is replayed; what Pace needs of a row."""

    def __init__(self, index: int, trace: RecordedText, controller: GammaController, seed: int) -> None:
        self.index, self.trace = index, trace
        self.controller, self.gamma_state = controller, controller.start()
        self.position = 0
        self.tokens: list[int] = trace.prompt.tolist()
        self.read = 0
        """Leading tokens that the drafter has read."""
        self.matches: list[int] = trace.matches(seed).tolist()
        self._text: list[int] = trace.text.tolist()
        self._signals: dict[Signal, Sequence[Sequence[Any]]] = {}

    def room(self) -> int:
        """Tokens that may be drafted: a round emits one more than it drafts."""
        return self.trace.end - self.position - 1

    def signal(self, drafted: int, signal: Signal) -> Any:
        """What draft pass number ``drafted`` of this round tells the row's controller."""
        if signal not in self._signals:
            self._signals[signal] = _signals(self.trace, signal)
        return self._signals[signal][self.position][drafted - 1]

    def unread(self) -> int:
        """Tokens that have to be read before drafting."""
        behind = len(self.tokens) - self.read
        return behind if behind > LAG else 0

    def commit(self, accepted: int, passes: int, drafts: bool) -> int:
        """Take the accepted tokens and the target's own; how many of them are the text's."""
        if passes and drafts:
            self.read = len(self.tokens) + min(accepted, passes - 1)
        new = self._text[self.position : self.position + accepted + 1]
        self.tokens += new
        self.position += len(new)
        return len(new)

    @property
    def done(self) -> bool:
        return self.position == len(self._text)


def _signals(trace: RecordedText, signal: Signal) -> Sequence[Sequence[Any]]:
    """(n, G) by position and draft pass."""
    if signal == "none":
        return []
    if signal == "peak_token":  # in files without the likeliest tokens, drawn ones stand for them
        tokens = trace.drafted if trace.likeliest is None else trace.likeliest
        pairs = zip(trace.peak.tolist(), tokens.tolist(), strict=True)
        return [list(zip(peaks, likeliest, strict=True)) for peaks, likeliest in pairs]
    chains = {"confidence": trace.confidence, "peak": trace.peak, "acceptance": trace.head}[signal]
    if chains is None:
        raise BadInput(reason="The traces hold no acceptance head's estimates, and this controller asks for them.")
    values: list[list[float]] = chains.tolist()
    return values


class Simulator:
    """An engine's loop around one controller, with a table instead of a clock and traces instead of models.

    It lives on between calls as an engine does: what the controller and the cost model learned stays.
    """

    def __init__(self, make: Make, table: CostTable, *, batch: int = 1, noise: float = 0.0, seed: int = 0) -> None:
        """``noise``: standard deviation of the logarithm of each simulated timing ÷ the table's; ``seed``: of the
        noise, and of the coins of sampled traces."""
        self.costs = CostModel()
        self.controller = make(self.costs)
        self._pace = GammaPlanner(self.controller, {})
        self._batch, self._noise, self._seed = batch, noise, seed
        self._draft_ms, self._verify_ms = cache(table.draft_ms), cache(table.verify_ms)
        self._unread_ms = table.catch_up_token_ms
        self._chance = random.Random(seed)
        self._rows: list[_Row] = []
        self._result = Simulated()

    def probe(self) -> None:
        """Time the passes that a serving engine times at its start; they are no part of the simulated time."""

        def time_pass(rows: int, width: int) -> float:
            return self._noisy(self._verify_ms(rows, rows * width))

        def time_draft(rows: int, passes: int, unread: int) -> float:
            return self._noisy(self._draft_ms(rows, passes) + unread * self._unread_ms)

        time_passes(self.costs, self._batch, 0, time_pass, time_draft)

    def run(self, traces: Sequence[RecordedText]) -> Simulated:
        """Serve the traces in order, at most ``batch`` at a time. Raises BadInput when the controller asks for a signal
        that was not recorded, or for more tokens than a chain has."""
        self._rows = []
        self._result = Simulated(by_request=[[] for _ in traces])
        waiting = deque(enumerate(traces))
        while waiting or self._rows:
            while waiting and len(self._rows) < self._batch:
                index, trace = waiting.popleft()
                self._rows.append(_Row(index, trace, self.controller, self._seed + index))
            self._round()
        return self._result

    def _round(self) -> None:
        begun, asked = time.thread_time_ns(), len(self._rows)
        gammas = self._pace.plan(self._rows)
        lengths = list(gammas)
        if (most := max(lengths)) > (depth := self._rows[0].trace.depth):
            reason = f"The controller asks for {most} drafted tokens and the recorded chains have {depth}"
            raise BadInput(reason=f"{reason}; record deeper ones.")
        passes = most if self.controller.signal == "none" else 0
        while self.controller.signal != "none" and passes < max(lengths):
            passes += 1
            asked += sum([length >= passes for length in lengths])
            self._pace.should_continue(self._rows, lengths, passes, partial(self._read, passes))
        self._result.add_decisions(asked, time.thread_time_ns() - begun)
        self._charge(gammas, lengths, passes)
        for row, gamma, drafted in zip(self._rows, gammas, lengths, strict=True):
            self._commit(row, gamma, drafted, passes)
        self._leave()

    def _read(self, drafted: int, signal: Signal) -> list[Any]:
        return [row.signal(drafted, signal) for row in self._rows]

    def _charge(self, gammas: Sequence[int], lengths: Sequence[int], passes: int) -> None:
        """What the passes of a round took, in milliseconds; the cost model is told, as by the engine."""
        rows, tokens, draft_ms = len(lengths), sum(lengths) + len(lengths), 0.0
        if passes:
            late = [row.unread() for row, gamma in zip(self._rows, gammas, strict=True) if gamma > 0]
            first = sum([each - 1 for each in late if each])  # a row's last token is the first draft pass's
            draft_ms = self._noisy(self._draft_ms(rows, passes) + first * self._unread_ms)
            observe_draft(self.costs, rows, passes, sum(late), draft_ms)
        verify_ms = self._noisy(self._verify_ms(rows, tokens))
        self.costs.observe_verify(rows, tokens, verify_ms, sum([len(row.tokens) for row in self._rows]))
        self._result.add_passes(passes, draft_ms, verify_ms)

    def _noisy(self, ms: float) -> float:
        return ms * math.exp(self._chance.gauss(0.0, self._noise)) if self._noise else ms

    def _commit(self, row: _Row, gamma: int, drafted: int, passes: int) -> None:
        accepted = min(row.matches[row.position], drafted)
        judged = row.trace.acceptance if row.trace.overlap is None else row.trace.overlap
        chances = () if row.trace.greedy else judged[row.position][: min(accepted + 1, drafted)].tolist()
        tokens = row.commit(accepted, passes, gamma > 0)
        seen = Observation(gamma, drafted, accepted, row.tokens, chances)
        begun = time.thread_time_ns()
        row.gamma_state.observe(seen)
        self._result.add_decisions(0, time.thread_time_ns() - begun)
        self._result.add_seen(row.index, seen, tokens)

    def _leave(self) -> None:
        """Finished rows leave; the last one takes the place of each, as in the engine."""
        for index in reversed([i for i, row in enumerate(self._rows) if row.done]):
            last = self._rows.pop()
            if index < len(self._rows):
                self._rows[index] = last
