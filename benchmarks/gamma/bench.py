"""``python -m benchmarks gamma`` from the names of models, or a recording, to a folder of results.

plan.json, measured.jsonl   what to do and what was done: the same command with this folder goes on from there
rounds.parquet, costs.json  what ``--simulate`` and ``--costs`` take
bench.json                  every figure, with definitions
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.gamma.contest import Contest, digest
from benchmarks.gamma.costs import CostTable, costs_of_engine, find_costs, profiles, save_costs
from benchmarks.gamma.measured import DecodeCounts, GammaMeasured
from benchmarks.gamma.oracle import OracleController
from benchmarks.gamma.plan import MIX, ORACLE, Contested, Entrant, GammaJob, GammaPlan, GammaSetting
from benchmarks.gamma.record import RecordPlan, record_file
from benchmarks.gamma.result import Results
from benchmarks.gamma.rounds import RecordedText, Recording, read_recording
from benchmarks.gamma.simulate import Simulated, Simulator, maker_of
from osd.bench.contenders import Tokens
from osd.bench.harness.folder import RunFolder
from osd.bench.harness.plan import data_sets, facts_of, new_folder
from osd.bench.harness.prompts import name_of
from osd.bench.harness.report import BenchResult, save_json
from osd.bench.harness.turns import measure_all
from osd.bench.harness.watch import Watch
from osd.demo.prompts import DOMAINS
from osd.models.acceptance_head import head_in_settings
from osd.models.pair import Pair, row_limit
from osd.server.start import choose_pair
from storage.errors import BadInput, BadSetting, OsdError
from storage.settings import Settings

ROUNDS, COSTS, BENCH, MEASURED = "rounds.parquet", "costs.json", "bench.json", "measured.jsonl"
SOURCE = "timed by python -m benchmarks gamma"


def bench_gamma(plan: GammaPlan, settings: Settings, watch: Watch) -> BenchResult:
    """Load the pair, draw as many prompts as the plan needs, measure; or replay a recording. Raises BadSetting,
    StoreWriteFailed, and what serving raises."""
    settings = settings if plan.threads is None else settings.changed(serve={"threads": plan.threads})
    contested, out = Contested.of(plan, settings.gamma), plan.out or new_folder("bench-gamma")
    if plan.simulate:
        return simulate_gamma(contested, settings, out, watch, insist=plan.insists)
    names = choose_pair(settings.serve, plan.target, plan.draft)
    sets = tuple(name_of(Path(path)) for path in plan.prompts) or tuple(DOMAINS)
    contested = replace(contested, target=names.target, draft=names.draft, data_sets=sets)
    pair = names.load(settings.serve)
    longest = row_limit(pair, settings.serve) - plan.max_tokens
    tokens = data_sets(plan, pair.tokenizer, contested.prompts_needed(), longest, seed=plan.seed)
    return measure_gamma(contested, pair, tokens, settings, out, watch, insist=plan.insists)


def measure_gamma(
    plan: Contested, pair: Pair, prompts: Mapping[str, Sequence[Tokens]], settings: Settings, out: Path, watch: Watch,
    *, insist: bool = True,
) -> BenchResult:  # fmt: skip
    """Measure a plan with real models. ``prompts``: by data set, ``plan.prompts_needed()`` of each.

    A controller that cannot serve the pair is left out, and said; with ``insist`` it is an error.
    """
    plan = _able(plan, Contest(pair, settings, plan, prompts, {}).require_able, insist, watch)
    plan = replace(plan, prompts_digest=digest(sorted(prompts.items())))
    folder = RunFolder(out, facts_of(plan), MEASURED, GammaMeasured)
    asked = RecordPlan(
        temperatures=plan.temperatures, new_tokens=plan.max_tokens, depth=plan.deepest(settings),
        head=head_in_settings(settings.gamma, pair.draft),
    )  # fmt: skip
    with watch.until_ctrl_c():
        recording = record_file(out / ROUNDS, pair, prompts, asked, watch)
    if watch.stopped:
        return BenchResult("gamma", facts_of(plan), {}, interrupted=True)
    contest = Contest(pair, settings, plan, prompts, {name: recording.of(name, 0.0) for name in prompts})
    before = len(folder.finished)
    measured = measure_all(plan.jobs(), contest.measure, watch, folder=folder, work=plan.work)
    whole = len(folder.finished)
    _leave_costs(contest, out, plan.deepest(settings), mine=whole - before, all_=whole)
    return _result(plan, measured, out, watch)


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
        deepest = min(self.plan.deepest(self._given), self.recording.depth)
        make = (
            maker_of(self._given, entrant.name, entrant.gamma, deepest)
            if entrant != ORACLE
            else (lambda _: OracleController(traces, deepest))
        )
        simulator = Simulator(make, self.table, batch=setting.batch)
        simulator.probe()
        return simulator.run(traces)


def plan_of(recording: Recording, plan: Contested) -> Contested:
    """The part of a plan that a recording can show: its data sets and temperatures, gammas as deep as its chains."""
    data_sets = tuple(dict.fromkeys(trace.data_set for trace in recording.traces))
    warm = {trace.temperature for trace in recording.traces}
    gammas = tuple(gamma for gamma in plan.initial_gammas if gamma <= recording.depth)
    return replace(
        plan,
        target=recording.target,
        draft=recording.draft,
        data_sets=data_sets,
        initial_gammas=gammas,
        initial=min(plan.initial, recording.depth),
        temperatures=tuple(t for t in plan.temperatures if t in warm),
        max_tokens=recording.new_tokens,
        turns=1,
        random_draft=False,
    )


def as_measured(job: GammaJob, seen: Simulated) -> GammaMeasured:
    """A replay as a measurement: its time is the table's, its decisions' is real."""
    counted = {each.name: getattr(seen, each.name) for each in fields(DecodeCounts)}
    return GammaMeasured(job=job, seconds=seen.clock_ms / 1000, **counted)


def simulate_gamma(plan: Contested, settings: Settings, out: Path, watch: Watch, *, insist: bool = True) -> BenchResult:
    """Replay a recording under costs by their file or name.

    Raises BadBenchFile, StoreWriteFailed, BadSetting when nothing that the plan asks for was recorded.
    """
    if plan.costs is None or plan.simulate is None:
        reason = f"--simulate needs costs: costs.json of a run, or one of {', '.join(profiles())}"
        raise BadSetting(source="option", key="--costs", reason=reason)
    table, recording = find_costs(plan.costs), read_recording(plan.simulate)
    part = plan_of(recording, plan)
    if not part.temperatures or not part.initial_gammas:
        known = ", ".join(f"{t:g}" for t in sorted({trace.temperature for trace in recording.traces}))
        reason = f"recorded were temperatures {known} and chains of {recording.depth} tokens; ask for some of these"
        raise BadSetting(source="option", key="--simulate", reason=reason)
    part = _able(part, Replay(recording, table, settings, part).require_able, insist, watch)
    replayed = Replay(recording, table, settings, part)
    measured = measure_all(replayed.jobs(), replayed.measure, watch)
    return _result(part, measured, out, watch, {"costs": {"name": table.name, "source": table.source}})


def _able(plan: Contested, tried: Callable[[Entrant], None], insist: bool, watch: Watch) -> Contested:
    """Return the plan for the controllers that can take part, each of which is ``tried``. Raises the first one's
    OsdError when all were asked for by name."""
    able = []
    for name in plan.controllers:
        try:
            tried(Entrant("rule", name, plan.initial))
            able.append(name)
        except OsdError as error:
            if insist:
                raise
            watch.say(f"{name} is left out: {error}")
    return replace(plan, controllers=tuple(able))


def _leave_costs(contest: Contest, out: Path, depth: int, *, mine: int, all_: int) -> None:
    """Write what this session's passes cost, unless an earlier one left costs and made more of the measurements."""
    if (out / COSTS).exists() and 2 * mine < all_:
        return
    batches = contest.plan.batch_sizes
    with suppress(BadInput):  # nothing was timed
        save_costs(out / COSTS, costs_of_engine(contest.costs, "measured", SOURCE, batches=batches, depth=depth))


def _result(
    plan: Contested, measured: Sequence[GammaMeasured], out: Path, watch: Watch, more: Mapping[str, Any] | None = None
) -> BenchResult:
    """Work the figures out and leave them in the folder; of a run that was stopped there are none."""
    if watch.stopped:
        return BenchResult("gamma", facts_of(plan), {}, interrupted=True)
    results = Results(plan, measured, more or {})
    files = {"all figures": save_json(out / BENCH, results.summary())}
    return BenchResult("gamma", facts_of(plan), results.figures(), results.tables(), files)
