"""Decodes the jobs of a plan in osd's engine and in transformers'.

An engine remembers nothing between requests but its cost model and its controllers. So one engine a batch size is
lent to one entrant after another, each with a cost model and a controller of its own, which live as long as the run:
to an entrant it is an engine of its own, and the weights are in memory once.
"""

from __future__ import annotations

import copy
import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from benchmarks.gamma.measured import DecodeCounts, GammaMeasured
from benchmarks.gamma.oracle import OracleController
from benchmarks.gamma.plan import ORACLE, Contested, Draft, Entrant, GammaJob, GammaSetting, engine_settings
from benchmarks.gamma.rounds import RecordedText
from benchmarks.gamma.simulate import maker_of, observe_draft
from osd.bench.contenders import Tokens, assisted_contender, run_in_order, wait_for_compiled
from osd.engine.engine import Engine
from osd.gamma.base import CostModel, DraftDecision, GammaController, Observation, Signal
from osd.gamma.costs.model import nearly
from osd.gamma.planner import GammaPlanner
from osd.models.pair import Pair
from osd.sequence import Completion
from storage.errors import BadSetting
from storage.records import Request
from storage.sampling import Sampling
from storage.settings import Settings

WARM_TOKENS = 24
"""Tokens to which an entrant decodes one batch of prompts before it is measured in a setting."""


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
    """A controller that answers as the one inside it, and counts its answers and the time that they take."""

    def __init__(self, inner: GammaController) -> None:
        self.inner = inner
        self.name = inner.name
        self.signal: Signal = inner.signal
        self.counts = DecodeCounts()
        self.started = 0
        """Requests."""

    def start(self) -> TimedRow:
        """The state of a new request."""
        self.started += 1
        return TimedRow(self.inner.start(), self)

    def took(self, before: int, begun: int, answers: int = 0) -> None:
        """A call that has just ended, whose clock was read twice at its beginning: from one reading to the next lies a
        reading, and a call that does next to nothing may seem shorter than it."""
        self.counts.add_decisions(answers, max(0, time.thread_time_ns() - begun - (begun - before)))

    def plan(self, rows: Sequence[TimedRow], rooms: Sequence[int], batch: int, unread: Sequence[int] = ()) -> list[int]:
        """Tokens to draft at most, a row."""
        states = [row.inner for row in rows]
        before, begun = time.thread_time_ns(), time.thread_time_ns()
        gammas = self.inner.plan(states, rooms, batch, unread)
        self.took(before, begun, len(states))
        return gammas

    def should_continue(self, rows: Sequence[TimedRow], drafted: int, signals: Sequence[Any]) -> list[DraftDecision]:
        """Which rows go on."""
        states = [row.inner for row in rows]
        before, begun = time.thread_time_ns(), time.thread_time_ns()
        answers = self.inner.should_continue(states, drafted, signals)
        self.took(before, begun, len(states))
        return answers


class RoundClock:
    """Times the rounds of one job from the end of the one before, decisions left out. The round in which a request
    comes in also read its prompt: of it is kept only what kind it was."""

    def __init__(self, measured: GammaMeasured, timed: Timed) -> None:
        self.measured, self._timed = measured, timed
        self._at = self._decided = self._started = 0

    def end_round(self, kind: str) -> None:
        """A round has ended."""
        now, decided = time.perf_counter_ns(), self.measured.decision_ns
        alone = self._timed.started == self._started
        self.measured.add_kind(kind, (now - self._at - decided + self._decided) / 1e6 if alone else None)
        self._at, self._decided, self._started = time.perf_counter_ns(), decided, self._timed.started


class CountedCosts(CostModel):
    """A cost model that counts passes, and passes the timings of whole batches on to one that hears of all contenders:
    what few rows take in an engine of many is not what they take in one of few."""

    def __init__(self, everyone: CostModel, batch: int) -> None:
        """``batch``: rows of a whole one."""
        super().__init__()
        self._everyone, self._whole = everyone, batch
        self.clock: RoundClock | None = None
        """What is counted; nothing while an entrant warms up."""
        self._drafted = (0, 0)
        """Counts of the round under way: draft passes, tokens that the drafter had to read first."""

    def observe_draft(self, batch: int, steps: int, ms: float) -> None:
        """See :class:`~osd.gamma.costs.model.CostModel`."""
        super().observe_draft(batch, steps, ms)
        self._drafted = steps, nearly(self.unread)
        if self.clock:
            self.clock.measured.add_draft(steps, ms)
        if batch == self._whole:
            observe_draft(self._everyone, batch, steps, self.unread, ms)

    def observe_verify(self, batch: int, tokens: int, ms: float, context: int = 0) -> None:
        """See :class:`~osd.gamma.costs.model.CostModel`."""
        super().observe_verify(batch, tokens, ms, context)
        if batch == self._whole:
            self._everyone.observe_verify(batch, tokens, ms, context)
        if self.clock:
            steps, unread = self._drafted
            self.clock.measured.add_target(ms)
            self.clock.end_round(f"{batch},{steps},{nearly(tokens)},{unread}")
        self._drafted = 0, 0


@dataclass(slots=True)
class Lodger:
    """What an entrant keeps in one setting, and brings along to the engine."""

    costs: CountedCosts
    controller: Timed

    def count(self, measured: GammaMeasured | None) -> None:
        """Count into a measurement from here on; None: what it decodes is no part of one."""
        costs, controller = self.costs, self.controller
        costs.clock = RoundClock(measured, controller) if measured else None
        controller.counts = measured or DecodeCounts()


class Contest:
    """Everything that the jobs of one plan are decoded with."""

    def __init__(
        self, pair: Pair, settings: Settings, plan: Contested, prompts: Mapping[str, Sequence[Tokens]],
        traces: Mapping[str, Sequence[RecordedText]],
    ) -> None:  # fmt: skip
        """``prompts``: a data set's, ``plan.prompts_needed()`` of them (fewer are taken round and round).
        ``traces``: the greedy text of each of them, in the same order, for the oracle."""
        wait_for_compiled()
        self.pair, self.plan = pair, plan
        self.costs = CostModel()
        """What everybody's passes cost."""
        self._settings = settings
        self._prompts, self._traces = prompts, traces
        self._length = max(len(prompt) for some in prompts.values() for prompt in some) + plan.max_tokens
        self._engines: dict[tuple[int, Draft], Engine] = {}
        self._lodgers: dict[tuple[GammaSetting, Entrant], Lodger] = {}

    def measure(self, job: GammaJob) -> GammaMeasured:
        """Decode a job's prompts and say how that went."""
        indices = self.plan.turn_prompts(job.setting, job.turn, job.part)
        prompts = self._texts(indices)
        if job.entrant.kind == "assisted":
            return self._assisted(job, prompts)
        lodger = self.lodger_of(job.setting, job.entrant)
        if job.entrant == ORACLE:
            lodger.controller = Timed(self._oracle(job.setting, indices))
        return self._timed(job, lodger, [self._request(job, i, prompt) for i, prompt in enumerate(prompts)])

    def _timed(self, job: GammaJob, lodger: Lodger, requests: Sequence[Request]) -> GammaMeasured:
        measured = GammaMeasured(job=job)
        lodger.count(measured)
        begun = time.perf_counter()
        done = self.decode(job.setting, lodger, requests)
        measured.seconds = time.perf_counter() - begun
        lodger.count(None)
        for each in (each for completion in done for each in completion.rounds):
            measured.add_round(each.drafted, each.judged_right)
        measured.tokens = sum(len(completion.tokens) for completion in done)
        measured.digest = "" if job.setting.temperature else digest([tuple(each.tokens) for each in done])
        return measured

    def decode(self, setting: GammaSetting, lodger: Lodger, requests: Sequence[Request]) -> list[Completion]:
        """Serve requests as this lodger; completions in the requests' order."""
        engine = self.engine(setting)
        engine.pool.costs, engine.planner = lodger.costs, GammaPlanner(lodger.controller, {})
        return run_in_order(engine, requests)

    def engine(self, setting: GammaSetting) -> Engine:
        """The engine of a setting's batch size and draft."""
        key = setting.batch, setting.draft
        if key not in self._engines:
            pair = self.pair if setting.draft == "given" else with_random_draft(self.pair)
            self._engines[key] = Engine(pair, engine_settings(self._settings, self.plan, setting.batch, self._length))
        return self._engines[key]

    def lodger(self, setting: GammaSetting, entrant: Entrant) -> Lodger:
        """A new lodger."""
        costs, engine = CountedCosts(self.costs, setting.batch), self.engine(setting)
        engine.pool.costs = costs
        engine.probe()
        make = maker_of(self._settings, entrant.name, entrant.gamma, self.plan.deepest(self._settings))
        return Lodger(costs, Timed(make(costs)))

    def lodger_of(self, setting: GammaSetting, entrant: Entrant) -> Lodger:
        """An entrant's own, warmed up when it is new."""
        key = setting, entrant
        if key not in self._lodgers:
            usual = Entrant("rule", "fixed", self.plan.initial)  # stands in for the oracle, which cannot be warmed up
            self._lodgers[key] = self.warm(setting, usual if entrant == ORACLE else entrant)
        return self._lodgers[key]

    def warm(self, setting: GammaSetting, entrant: Entrant, tokens: int = WARM_TOKENS) -> Lodger:
        """A new lodger that has decoded so many tokens of a batch of prompts. Raises OsdError."""
        lodger = self.lodger(setting, entrant)
        sampling = Sampling(temperature=setting.temperature, seed=0)
        prompts = self._texts(self.plan.warm_prompts(setting))
        length = min(tokens, self.plan.max_tokens)
        self.decode(setting, lodger, [Request(prompt, length, sampling) for prompt in prompts])
        return lodger

    def require_able(self, entrant: Entrant) -> None:
        """Try a controller on a few tokens. Raises OsdError where it cannot serve this pair."""
        setting = self.plan.main(self.plan.data_sets[0])
        lodger = self.warm(setting, entrant, tokens=4)
        if lodger.controller.signal == "acceptance" and self.engine(setting).pool.head is None:
            reason = f"{entrant.name} asks an acceptance head; name its folder (OSD_GAMMA__SPECDECPP__HEAD)"
            raise BadSetting(source="settings", key="gamma.specdecpp.head", reason=reason)

    def _texts(self, indices: Sequence[tuple[str, int]]) -> list[Tokens]:
        return [self._prompts[name][i % len(self._prompts[name])] for name, i in indices]

    def _oracle(self, setting: GammaSetting, indices: Sequence[tuple[str, int]]) -> OracleController:
        traces = [self._traces[name][i % len(self._traces[name])] for name, i in indices]
        return OracleController(traces, self.engine(setting).settings.gamma.max)

    def _assisted(self, job: GammaJob, prompts: Sequence[Tokens]) -> GammaMeasured:
        contender = assisted_contender(self.pair, job.entrant.name, self.plan.max_tokens)
        begun = time.perf_counter()
        texts = contender.decode(prompts)
        return GammaMeasured(job=job, tokens=sum(map(len, texts)), seconds=time.perf_counter() - begun)

    def _request(self, job: GammaJob, index: int, prompt: Tokens) -> Request:
        seed = (job.turn * len(self._prompts) + job.part) * self.plan.size(job.setting) + index
        return Request(prompt, self.plan.max_tokens, Sampling(temperature=job.setting.temperature, seed=seed))


def with_random_draft(pair: Pair, seed: int = 0) -> Pair:
    """The same target with a draft of the same shape that knows nothing."""
    generator = torch.Generator().manual_seed(seed)
    module: Any = copy.deepcopy(pair.draft.module)
    with torch.no_grad():
        for weight in module.parameters():
            if weight.dim() > 1:
                spread = float(weight.float().std())
                weight.copy_((torch.randn(weight.shape, generator=generator) * spread).to(weight))
    return replace(pair, draft=replace(pair.draft, name=f"{pair.draft.name}, random weights", module=module))


def digest(texts: object) -> str:
    """Return a short name of some texts: equal texts, equal names."""
    return hashlib.blake2b(repr(texts).encode(), digest_size=8).hexdigest()
