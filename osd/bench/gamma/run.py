"""Goes through a plan's jobs, in the engine or in the simulator."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from osd.bench.contenders import Tokens
from osd.bench.gamma.contest import Contest
from osd.bench.gamma.costs import costs_of_engine, save_costs
from osd.bench.gamma.measured import Folder, Measured
from osd.bench.gamma.plan import Entrant, Plan
from osd.bench.gamma.progress import Progress
from osd.bench.gamma.record import record_file
from osd.bench.gamma.replay import Replay
from osd.bench.gamma.result import Results
from osd.bench.gamma.rounds import Recording
from osd.models.acceptance_head import head_in_settings
from osd.models.pair import Pair
from storage.errors import BadInput, BadSetting, OsdError
from storage.settings import Settings

ROUNDS, COSTS = "rounds.parquet", "costs.json"
SOURCE = "timed by osd bench gamma"


def digest_of(prompts: Mapping[str, Sequence[Tokens]]) -> str:
    """A name of the prompts, so that a run is not gone on with others."""
    return hashlib.blake2b(repr(sorted(prompts.items())).encode(), digest_size=8).hexdigest()


def unable(pair: Pair, settings: Settings, plan: Plan, prompts: Mapping[str, Sequence[Tokens]]) -> dict[str, OsdError]:
    """Controllers that cannot serve this pair, and why: each is tried on a few tokens."""
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


def run(
    pair: Pair,
    settings: Settings,
    plan: Plan,
    prompts: Mapping[str, Sequence[Tokens]],
    out: Path,
    progress: Progress,
) -> tuple[Results, Contest, Recording]:
    """Measure what the folder does not hold yet. Raises BadSetting for the folder of another plan, StoreWriteFailed."""
    folder = Folder(out, plan)
    done = {each.job for each in folder.finished}
    jobs = [job for job in plan.jobs() if job not in done]
    progress.begin(sum(map(plan.work, jobs)))
    progress.at("recording rounds")
    recording = record_file(
        out / ROUNDS,
        pair,
        prompts,
        temperatures=plan.temperatures,
        new_tokens=plan.max_tokens,
        depth=depth(settings, plan),
        head=head_in_settings(settings.gamma, pair.draft),
        report=lambda texts, total, name: progress.at(f"recording {name}, {texts} of {total}"),
    )
    contest = Contest(pair, settings, plan, prompts, {name: recording.of(name, 0.0) for name in prompts})
    try:
        for job in jobs:
            progress.at(f"{job.setting}, {job.entrant}")
            folder.add(contest.measure(job))
            progress.did(plan.work(job))
    finally:
        mine = len(folder.finished) - len(done)
        _leave_costs(contest, out, depth(settings, plan), mine=mine, all_=len(folder.finished))
    return Results(plan, folder.finished), contest, recording


def _leave_costs(contest: Contest, out: Path, depth: int, *, mine: int, all_: int) -> None:
    """What this session's passes cost, unless an earlier one left costs and made more of the measurements."""
    if (out / COSTS).exists() and 2 * mine < all_:
        return
    batches = contest.plan.batches
    with suppress(BadInput):  # nothing was timed
        save_costs(out / COSTS, costs_of_engine(contest.costs, "measured", SOURCE, batches=batches, depth=depth))


def replay(replayed: Replay, progress: Progress) -> Results:
    """Simulate all jobs."""
    jobs = list(replayed.jobs())
    progress.begin(len(jobs))
    measured: list[Measured] = []
    for job in jobs:
        progress.at(f"{job.setting}, {job.entrant}")
        measured.append(replayed.measure(job))
        progress.did(1)
    return Results(replayed.plan, measured)


def depth(settings: Settings, plan: Plan) -> int:
    """Tokens of a recorded chain: as many as any controller of the plan may draft."""
    return max(settings.gamma.max, *plan.gammas)
