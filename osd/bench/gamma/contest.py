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

from osd.bench.contenders import Tokens, assisted_contender, wait_for_compiled
from osd.bench.gamma.measured import GammaMeasured
from osd.bench.gamma.oracle import OracleController
from osd.bench.gamma.plan import ORACLE, Draft, Entrant, GammaJob, GammaPlan, GammaSetting, engine_settings
from osd.bench.gamma.rounds import RecordedText
from osd.bench.gamma.timed import CountedCosts, Rounds, Timed
from osd.engine.engine import Engine
from osd.gamma.base import CostModel, GammaController
from osd.gamma.factory import make_controller
from osd.gamma.goodput.compiled import COMPILER
from osd.gamma.planner import GammaPlanner
from osd.models.pair import Model, Pair
from osd.sequence import Completion
from storage.records import Request, Sampling
from storage.settings import Settings

WARM_TOKENS = 24
"""Tokens to which an entrant decodes one batch of prompts before it is measured in a setting."""


@dataclass(slots=True)
class Lodger:
    """What an entrant keeps in one setting, and brings along to the engine."""

    costs: CountedCosts
    controller: Timed


class Contest:
    """Everything that the jobs of one plan are decoded with."""

    def __init__(
        self, pair: Pair, settings: Settings, plan: GammaPlan, prompts: Mapping[str, Sequence[Tokens]],
        traces: Mapping[str, Sequence[RecordedText]],
    ) -> None:  # fmt: skip
        """``prompts``: a data set's, ``plan.prompts_needed()`` of them (fewer are taken round and round).
        ``traces``: the greedy text of each of them, in the same order, for the oracle."""
        COMPILER.wait()
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
        indices = self.plan.prompts(job.setting, job.turn, job.part)
        prompts = self._texts(indices)
        if job.entrant.kind == "assisted":
            return self._assisted(job, prompts)
        lodger = self.lodger_of(job.setting, job.entrant)
        if job.entrant == ORACLE:
            lodger.controller = Timed(self._oracle(job.setting, indices))
        return self._timed(job, lodger, [self._request(job, i, prompt) for i, prompt in enumerate(prompts)])

    def _timed(self, job: GammaJob, lodger: Lodger, requests: Sequence[Request]) -> GammaMeasured:
        costs, timed = lodger.costs, lodger.controller
        before = costs.draft_passes, costs.target_passes, costs.clock_ms, timed.decisions, timed.spent_ns
        costs.timed, costs.by_kind = timed, Rounds()
        begun = time.perf_counter()
        done = self.decode(job.setting, lodger, requests)
        seconds, costs.timed = time.perf_counter() - begun, None  # what it decodes later is no part of this
        rounds = [r for completion in done for r in completion.rounds]
        return GammaMeasured(
            job,
            tokens=sum(len(completion.tokens) for completion in done),
            seconds=seconds,
            rounds=len(rounds),
            drafted=sum(r.drafted for r in rounds),
            accepted=sum(r.accepted for r in rounds),
            draft_passes=costs.draft_passes - before[0],
            target_passes=costs.target_passes - before[1],
            clock_ms=costs.clock_ms - before[2],
            decisions=timed.decisions - before[3],
            decision_ns=timed.spent_ns - before[4],
            digest="" if job.setting.temperature else digest(completion.tokens for completion in done),
            took_ms=costs.by_kind.took,
            first=costs.by_kind.first,
            texts=costs.by_kind.texts,
        )

    def decode(self, setting: GammaSetting, lodger: Lodger, requests: Sequence[Request]) -> list[Completion]:
        """Serve requests as this lodger; completions in the requests' order."""
        engine = self.engine(setting)
        engine.costs, engine.planner = lodger.costs, GammaPlanner(lodger.controller, {})
        done = {completion.request.id: completion for completion in engine.run(requests)}
        return [done[request.id] for request in requests]

    def engine(self, setting: GammaSetting) -> Engine:
        """The engine of a setting's batch size and draft."""
        key = setting.batch, setting.draft
        if key not in self._engines:
            pair = self.pair if setting.draft == "given" else with_random_draft(self.pair)
            self._engines[key] = Engine(pair, engine_settings(self._settings, self.plan, setting.batch, self._length))
        return self._engines[key]

    def controller(self, setting: GammaSetting, entrant: Entrant, costs: CostModel) -> GammaController:
        """A new controller of this name and initial gamma. Raises BadSetting."""
        settings = engine_settings(self._settings, self.plan, setting.batch, self._length)
        return make_controller(settings.changed(gamma={"initial": entrant.gamma}).gamma, costs, entrant.name)

    def lodger(self, setting: GammaSetting, entrant: Entrant) -> Lodger:
        """A new lodger."""
        costs = CountedCosts(self.costs, setting.batch)
        return Lodger(costs, Timed(self.controller(setting, entrant, costs)))

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

    def _texts(self, indices: Sequence[tuple[str, int]]) -> list[Tokens]:
        return [self._prompts[name][i % len(self._prompts[name])] for name, i in indices]

    def _oracle(self, setting: GammaSetting, indices: Sequence[tuple[str, int]]) -> OracleController:
        traces = [self._traces[name][i % len(self._traces[name])] for name, i in indices]
        return OracleController(traces, self.engine(setting).settings.gamma.max)

    def _assisted(self, job: GammaJob, prompts: Sequence[Tokens]) -> GammaMeasured:
        contender = assisted_contender(self.pair, job.entrant.name, self.plan.max_tokens)
        begun = time.perf_counter()
        texts = contender.decode(prompts)
        return GammaMeasured(job, sum(map(len, texts)), time.perf_counter() - begun)

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
    draft = Model(f"{pair.draft.name}, random weights", module, pair.draft.limit, pair.draft.build)
    return replace(pair, draft=draft)


def digest(texts: Any) -> str:
    """A short name of some texts: equal texts, equal names."""
    return hashlib.blake2b(repr([tuple(text) for text in texts]).encode(), digest_size=8).hexdigest()
