"""``python -m benchmarks gamma`` from the names of models, or a recording, to a folder of results.

plan.json, measured.jsonl   what to do and what was done: the same command with this folder goes on from there
rounds.parquet, costs.json  what ``--simulate`` and ``--costs`` take
bench.json                  every figure, with definitions
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.gamma.contest import Contest, digest
from benchmarks.gamma.costs import costs_of_engine, find_costs, profiles, save_costs
from benchmarks.gamma.measured import GammaMeasured
from benchmarks.gamma.plan import Contested, Entrant, GammaPlan
from benchmarks.gamma.record import record_file
from benchmarks.gamma.replay import Replay, plan_of
from benchmarks.gamma.result import Results
from benchmarks.gamma.rounds import Recording, read_recording
from osd.bench.contenders import Tokens
from osd.bench.harness.folder import RunFolder
from osd.bench.harness.plan import data_sets, new_folder
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
        return simulate_gamma(plan, contested, settings, out, watch)
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
    folder, recorded = RunFolder(out, asdict(plan), MEASURED, GammaMeasured), list[Recording]()
    with watch.until_ctrl_c():
        recorded.append(_record(pair, settings, plan, prompts, out, watch))
    if not recorded:
        return BenchResult("gamma", asdict(plan), {}, interrupted=True)
    recording = recorded[0]
    contest = Contest(pair, settings, plan, prompts, {name: recording.of(name, 0.0) for name in prompts})
    before = len(folder.finished)
    measured = measure_all(
        plan.jobs(), contest.measure, watch, folder=folder, job_of=lambda each: each.job, work=plan.work
    )
    whole = len(folder.finished)
    _leave_costs(contest, out, depth(settings, plan), mine=whole - before, all_=whole)
    return _result(plan, measured, out, watch)


def simulate_gamma(asked: GammaPlan, plan: Contested, settings: Settings, out: Path, watch: Watch) -> BenchResult:
    """Replay a recording under costs by their file or name.

    Raises BadBenchFile, StoreWriteFailed, BadSetting when nothing that the plan asks for was recorded.
    """
    if asked.costs is None or asked.simulate is None:
        reason = f"--simulate needs costs: costs.json of a run, or one of {', '.join(profiles())}"
        raise BadSetting(source="option", key="--costs", reason=reason)
    table, recording = find_costs(asked.costs), read_recording(asked.simulate)
    part = plan_of(recording, plan)
    if not part.temperatures or not part.gammas:
        known = ", ".join(f"{t:g}" for t in sorted({trace.temperature for trace in recording.traces}))
        reason = f"recorded were temperatures {known} and chains of {recording.depth} tokens; ask for some of these"
        raise BadSetting(source="option", key="--simulate", reason=reason)
    part = _able(part, Replay(recording, table, settings, part).require_able, asked.insists, watch)
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


def depth(settings: Settings, plan: Contested) -> int:
    """Return the tokens of a recorded chain: as many as any controller of the plan may draft."""
    return max(settings.gamma.max, *plan.gammas)


def _record(
    pair: Pair, settings: Settings, plan: Contested, prompts: Mapping[str, Sequence[Tokens]], out: Path, watch: Watch
) -> Recording:
    return record_file(
        out / ROUNDS, pair, prompts, temperatures=plan.temperatures, new_tokens=plan.max_tokens,
        depth=depth(settings, plan), head=head_in_settings(settings.gamma, pair.draft),
        watch=watch,
    )  # fmt: skip


def _leave_costs(contest: Contest, out: Path, depth: int, *, mine: int, all_: int) -> None:
    """Write what this session's passes cost, unless an earlier one left costs and made more of the measurements."""
    if (out / COSTS).exists() and 2 * mine < all_:
        return
    batches = contest.plan.batches
    with suppress(BadInput):  # nothing was timed
        save_costs(out / COSTS, costs_of_engine(contest.costs, "measured", SOURCE, batches=batches, depth=depth))


def _result(
    plan: Contested, measured: Sequence[GammaMeasured], out: Path, watch: Watch, more: Mapping[str, Any] | None = None
) -> BenchResult:
    """Work the figures out and leave them in the folder; of a run that was stopped there are none."""
    if watch.stopped:
        return BenchResult("gamma", asdict(plan), {}, interrupted=True)
    results = Results(plan, measured, more or {})
    files = {"all figures": save_json(out / BENCH, results.summary())}
    return BenchResult("gamma", asdict(plan), results.figures(), results.tables(), files)
