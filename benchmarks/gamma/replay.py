"""``benchmarks gamma --simulate``: the same contest from a recording and a table of costs, without a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from benchmarks.gamma.costs import CostTable
from benchmarks.gamma.measured import GammaMeasured
from benchmarks.gamma.oracle import OracleController
from benchmarks.gamma.plan import MIX, ORACLE, Contested, Entrant, GammaJob, GammaSetting, engine_settings
from benchmarks.gamma.rounds import RecordedText, Recording
from benchmarks.gamma.simulate import Simulated, Simulator
from osd.gamma.base import CostModel, GammaController
from osd.gamma.factory import make_controller
from storage.settings import Settings


class Replay:
    """Jobs of a plan, simulated. A data set's turn is all its traces."""

    def __init__(self, recording: Recording, table: CostTable, settings: Settings, plan: Contested) -> None:
        self.recording, self.table, self.plan = recording, table, plan
        self._given = settings

    def jobs(self) -> Iterator[GammaJob]:
        """Those that can be replayed: transformers' modes cannot, a text has one turn, and there is one draft."""
        for setting in self.plan.settings():
            entrants = self.plan.entrants(setting, 0)
            yield from (GammaJob(setting, entrant, 0) for entrant in entrants if entrant.kind != "assisted")

    def require_able(self, entrant: Entrant) -> None:
        """Try a controller on one trace. Raises OsdError where it cannot be replayed."""
        setting = self.plan.main(self.plan.data_sets[0])
        self.simulate(setting, entrant, self.traces(setting)[:1])

    def measure(self, job: GammaJob) -> GammaMeasured:
        """Simulate a job."""
        return as_measured(job, self.simulate(job.setting, job.entrant, self.traces(job.setting)))

    def traces(self, setting: GammaSetting) -> list[RecordedText]:
        """A setting's traces in the order in which they are served."""
        if setting.data_set != MIX:
            return list(self.recording.of(setting.data_set, setting.temperature))
        kept = [iter(self.recording.of(name, setting.temperature)) for name in self.plan.data_sets]
        mixed: list[RecordedText] = []
        while stretch := [trace for some in kept for trace in islice(some, self.plan.mix)]:
            mixed += stretch
        return mixed

    def simulate(self, setting: GammaSetting, entrant: Entrant, traces: Sequence[RecordedText]) -> Simulated:
        """Replay the traces under a new controller, with chains as deep as those recorded."""
        settings = engine_settings(self._given, self.plan, setting.batch, self._given.serve.max_length)
        deepest = min(settings.gamma.max, self.recording.depth)
        gamma = settings.changed(gamma={"max": deepest, "initial": entrant.gamma}).gamma

        def make(costs: CostModel) -> GammaController:
            if entrant == ORACLE:
                return OracleController(traces, deepest)
            return make_controller(gamma, costs, entrant.name)

        simulator = Simulator(make, self.table, batch=setting.batch)
        simulator.probe()
        return simulator.run(traces)


def plan_of(recording: Recording, plan: Contested) -> Contested:
    """The part of a plan that a recording can show: its data sets and temperatures, gammas as deep as its chains."""
    data_sets = tuple(dict.fromkeys(trace.data_set for trace in recording.traces))
    warm = {trace.temperature for trace in recording.traces}
    gammas = tuple(gamma for gamma in plan.gammas if gamma <= recording.depth)
    return replace(
        plan,
        target=recording.target,
        draft=recording.draft,
        data_sets=data_sets,
        gammas=gammas,
        initial=min(plan.initial, recording.depth),
        temperatures=tuple(t for t in plan.temperatures if t in warm),
        max_tokens=recording.new_tokens,
        turns=1,
        random_draft=False,
    )


def as_measured(job: GammaJob, seen: Simulated) -> GammaMeasured:
    """A replay as a measurement: its time is the table's, its decisions' is real."""
    clock_ms = seen.draft_ms + seen.verify_ms
    counted = {name: getattr(seen, name) for name in ("rounds", "drafted", "accepted", "draft_passes", "decisions")}
    return GammaMeasured(
        job, tokens=seen.emitted, seconds=clock_ms / 1000, target_passes=seen.steps, clock_ms=clock_ms,
        decision_ns=round(1e9 * seen.decision_seconds), **counted,
    )  # fmt: skip
