"""``osd bench gamma`` from the names of models, or a recording, to a folder of results.

plan.json, measured.jsonl   what to do and what was done: the same command with this folder goes on from there
rounds.parquet, costs.json  what ``--simulate`` and ``--costs`` take
bench.json                  every figure, with definitions
throughput                  the picture, .png and .svg
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from osd.bench.contenders import Tokens
from osd.bench.gamma.contest import Contest
from osd.bench.gamma.costs import CostTable, costs_of_engine, save_costs
from osd.bench.gamma.measured import GammaMeasured
from osd.bench.gamma.plan import Entrant, GammaPlan
from osd.bench.gamma.profiles import PROFILES, find_costs
from osd.bench.gamma.record import record_file
from osd.bench.gamma.replay import Replay, plan_of
from osd.bench.gamma.result import Results
from osd.bench.gamma.rounds import Recording, read_recording
from osd.bench.harness.folder import RunFolder
from osd.bench.harness.prompts import listed, name_of, tokens_by_set
from osd.bench.harness.report import BenchResult, save_json
from osd.bench.harness.turns import measure_all
from osd.bench.harness.watch import Watch
from osd.demo.prompts import DOMAINS
from osd.models.acceptance_head import head_in_settings
from osd.models.pair import Pair, row_limit
from osd.server.start import choose_pair
from storage.errors import BadInput, BadSetting, OsdError
from storage.files.files import writing
from storage.settings import Settings

ROUNDS, COSTS, BENCH, MEASURED = "rounds.parquet", "costs.json", "bench.json", "measured.jsonl"
SOURCE = "timed by osd bench gamma"


def measure(
    settings: Settings, plan: GammaPlan, names: tuple[str | None, str | None], prompts: Sequence[str] | None,
    seed: int, out: Path, watch: Watch, *, insist: bool,
) -> BenchResult:  # fmt: skip
    """Load the pair, draw as many prompts as the plan needs, measure. Raises what :func:`bench_gamma` raises."""
    chosen = choose_pair(settings.serve, *names)
    sets = tuple(name_of(Path(path)) for path in listed(prompts)) or tuple(DOMAINS)
    plan = replace(plan, target=chosen.target, draft=chosen.draft, data_sets=sets)
    pair = chosen.load(settings.serve)
    longest = row_limit(pair, settings.serve) - plan.max_tokens
    tokens = tokens_by_set(pair.tokenizer, prompts, plan.prompts_needed(), longest, seed=seed)
    return bench_gamma(pair, settings, plan, tokens, out, watch, insist=insist)


def replay(
    settings: Settings, plan: GammaPlan, path: Path, costs: str | None, out: Path, watch: Watch, *, insist: bool
) -> BenchResult:
    """Read the recording and the costs, replay. Raises what :func:`simulate_gamma` raises, and BadBenchFile."""
    if costs is None:
        reason = f"--simulate needs costs: costs.json of a run, or one of {', '.join(PROFILES)}"
        raise BadSetting(source="option", key="--costs", reason=reason)
    table, recording = find_costs(costs), read_recording(path)
    return simulate_gamma(recording, table, settings, plan, out, watch, insist=insist)


def bench_gamma(
    pair: Pair,
    settings: Settings,
    plan: GammaPlan,
    prompts: Mapping[str, Sequence[Tokens]],
    out: Path,
    watch: Watch,
    *,
    insist: bool = True,
) -> BenchResult:
    """Measure a plan with real models. ``prompts``: by data set, ``plan.prompts_needed()`` of each.

    A controller that cannot serve the pair is left out, and said; with ``insist`` it is an error. Raises BadSetting,
    StoreWriteFailed, and what serving raises.
    """
    plan = _without(plan, unable(pair, settings, plan, prompts), insist, watch)
    plan = replace(plan, prompts_digest=digest_of(prompts))
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


def simulate_gamma(
    recording: Recording,
    table: CostTable,
    settings: Settings,
    plan: GammaPlan,
    out: Path,
    watch: Watch,
    *,
    insist: bool = True,
) -> BenchResult:
    """Replay a recording under a table of costs; ``insist`` as above.

    Raises BadSetting when nothing that the plan asks for was recorded, and StoreWriteFailed.
    """
    part = plan_of(recording, plan)
    if not part.temperatures or not part.gammas:
        known = ", ".join(f"{t:g}" for t in sorted({trace.temperature for trace in recording.traces}))
        reason = f"recorded were temperatures {known} and chains of {recording.depth} tokens; ask for some of these"
        raise BadSetting(source="option", key="--simulate", reason=reason)
    part = _without(part, Replay(recording, table, settings, part).unable(), insist, watch)
    replayed = Replay(recording, table, settings, part)
    measured = measure_all(replayed.jobs(), replayed.measure, watch)
    return _result(part, measured, out, watch, {"costs": {"name": table.name, "source": table.source}})


def _without(plan: GammaPlan, unable: Mapping[str, OsdError], insist: bool, watch: Watch) -> GammaPlan:
    """Return the plan for the controllers that can take part. Raises the first error when all were asked for by
    name."""
    for name, error in unable.items():
        if insist:
            raise error
        watch.say(f"{name} is left out: {error}")
    return replace(plan, controllers=tuple(name for name in plan.controllers if name not in unable))


def unable(
    pair: Pair, settings: Settings, plan: GammaPlan, prompts: Mapping[str, Sequence[Tokens]]
) -> dict[str, OsdError]:
    """Return the controllers that cannot serve this pair, and why: each is tried on a few tokens."""
    contest = Contest(pair, settings, plan, prompts, {})
    setting = plan.main(plan.data_sets[0])
    found: dict[str, OsdError] = {}
    for name in plan.controllers:
        try:
            lodger = contest.warm(setting, Entrant("rule", name, plan.initial), tokens=4)
            if lodger.controller.signal == "acceptance" and contest.engine(setting).drafter.head is None:
                reason = f"{name} asks an acceptance head; name its folder (OSD_GAMMA__SPECDECPP__HEAD)"
                raise BadSetting(source="settings", key="gamma.specdecpp.head", reason=reason)
        except OsdError as error:
            found[name] = error
    return found


def digest_of(prompts: Mapping[str, Sequence[Tokens]]) -> str:
    """Return a name of the prompts, so that a run is not gone on with others."""
    return hashlib.blake2b(repr(sorted(prompts.items())).encode(), digest_size=8).hexdigest()


def depth(settings: Settings, plan: GammaPlan) -> int:
    """Return the tokens of a recorded chain: as many as any controller of the plan may draft."""
    return max(settings.gamma.max, *plan.gammas)


def _record(
    pair: Pair, settings: Settings, plan: GammaPlan, prompts: Mapping[str, Sequence[Tokens]], out: Path, watch: Watch
) -> Recording:
    return record_file(
        out / ROUNDS, pair, prompts, temperatures=plan.temperatures, new_tokens=plan.max_tokens,
        depth=depth(settings, plan), head=head_in_settings(settings.gamma, pair.draft),
        report=lambda texts, total, name: watch.at(f"recording {name}, {texts} of {total}"),
    )  # fmt: skip


def _leave_costs(contest: Contest, out: Path, depth: int, *, mine: int, all_: int) -> None:
    """Write what this session's passes cost, unless an earlier one left costs and made more of the measurements."""
    if (out / COSTS).exists() and 2 * mine < all_:
        return
    batches = contest.plan.batches
    with suppress(BadInput):  # nothing was timed
        save_costs(out / COSTS, costs_of_engine(contest.costs, "measured", SOURCE, batches=batches, depth=depth))


def _result(
    plan: GammaPlan, measured: Sequence[GammaMeasured], out: Path, watch: Watch, more: Mapping[str, Any] | None = None
) -> BenchResult:
    """Work the figures out and leave them in the folder; of a run that was stopped there are none."""
    if watch.stopped:
        return BenchResult("gamma", asdict(plan), {}, interrupted=True)
    results = Results(plan, measured, more or {})
    return BenchResult("gamma", asdict(plan), results.figures(), results.tables(), leave(results, out))


def leave(results: Results, out: Path) -> dict[str, Path]:
    """Write figures and the picture; return the files by what they are. Raises StoreWriteFailed."""
    from osd.bench.gamma.picture import draw_throughput  # matplotlib takes a second to load
    from osd.bench.harness.picture import save

    figures = save_json(out / BENCH, results.summary())
    with writing(out):
        throughput = save(draw_throughput(results.main, results.plan), out, "throughput")
    return {"all figures": figures, "throughput": throughput}
