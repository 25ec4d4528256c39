"""``osd bench gamma`` from loaded models or a recording to a folder of results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from osd.bench.contenders import Tokens
from osd.bench.gamma.costs import CostTable, load_costs
from osd.bench.gamma.leave import leave, leave_page
from osd.bench.gamma.page import Show
from osd.bench.gamma.plan import Plan
from osd.bench.gamma.progress import Progress
from osd.bench.gamma.replay import HISTORIES, Replay, plan_of
from osd.bench.gamma.result import Results
from osd.bench.gamma.rounds import Recording
from osd.bench.gamma.run import COSTS, digest_of, replay, run, unable
from osd.models.pair import Pair
from storage.errors import BadSetting, OsdError
from storage.settings import Settings

Done = tuple[Results, dict[str, Path]]
"""What was measured, and the files that were left, by what they are."""


def bench_gamma(
    pair: Pair,
    settings: Settings,
    plan: Plan,
    prompts: Mapping[str, Sequence[Tokens]],
    out: Path,
    progress: Progress,
    *,
    insist: bool = True,
    sensitivity: bool = False,
) -> Done:
    """Measure a plan with real models. ``prompts``: by data set, ``plan.prompts_needed()`` of each.

    A controller that cannot serve the pair is left out, and said; with ``insist`` it is an error. Raises BadSetting,
    StoreWriteFailed, and what serving raises.
    """
    plan = _without(plan, unable(pair, settings, plan, prompts), insist, progress)
    plan = replace(plan, prompts_digest=digest_of(prompts))
    results, contest, recording = run(pair, settings, plan, prompts, out, progress)
    if sensitivity:
        replayed = Replay(recording, load_costs(out / COSTS), settings, plan)
        results.more["sensitivity"] = _sensitivity(replayed, progress)
    files = leave(results, out)
    page = leave_page(
        plan, lambda name: recording.of(name, 0.0), contest.rounds, shower(pair.tokenizer), settings.gamma.rule, out
    )
    return results, files | ({"gamma along texts": page} if page else {})


def simulate_gamma(
    recording: Recording,
    table: CostTable,
    settings: Settings,
    plan: Plan,
    out: Path,
    progress: Progress,
    *,
    tokenizer: Any = None,
    insist: bool = True,
    sensitivity: bool = False,
) -> Done:
    """Replay a recording under a table of costs; ``insist`` as above.

    Raises BadSetting when nothing that the plan asks for was recorded, and StoreWriteFailed.
    """
    part = plan_of(recording, plan)
    if not part.temperatures or not part.gammas:
        known = ", ".join(f"{t:g}" for t in sorted({trace.temperature for trace in recording.traces}))
        reason = f"recorded were temperatures {known} and chains of {recording.depth} tokens; ask for some of these"
        raise BadSetting(source="option", key="--simulate", reason=reason)
    part = _without(part, Replay(recording, table, settings, part).unable(), insist, progress)
    replayed = Replay(recording, table, settings, part)
    results = replay(replayed, progress)
    results.more["costs"] = {"name": table.name, "source": table.source}
    if sensitivity:
        results.more["sensitivity"] = _sensitivity(replayed, progress)
    files = leave(results, out)
    page = leave_page(
        part, lambda name: recording.of(name, 0.0), replayed.rounds, shower(tokenizer), settings.gamma.rule, out
    )
    return results, files | ({"gamma along texts": page} if page else {})


def _without(plan: Plan, unable: Mapping[str, OsdError], insist: bool, progress: Progress) -> Plan:
    """The plan for the controllers that can take part. Raises the first error when all were asked for by name."""
    for name, error in unable.items():
        if insist:
            raise error
        progress.say(f"{name} is left out: {error}")
    return replace(plan, controllers=tuple(name for name in plan.controllers if name not in unable))


def _sensitivity(replayed: Replay, progress: Progress) -> dict[str, Any]:
    """Tokens a second by data set, history length and gamma.max."""
    progress.begin(len(replayed.plan.data_sets) * len(HISTORIES) * len(replayed.maxima))
    found = {}
    for name in replayed.plan.data_sets:
        progress.at(f"sensitivity, {name}")
        found[name] = replayed.sensitivity(name, lambda: progress.did(1))
    return found


def shower(tokenizer: Any) -> Show:
    """Tokens as text; as numbers without a tokenizer."""
    if tokenizer is None:
        return lambda token: f"{token} "
    return lambda token: str(tokenizer.decode([token]))
