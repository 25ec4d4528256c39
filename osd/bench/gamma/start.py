"""What ``osd bench gamma`` reads before it measures: a pair and prompts, or a recording and costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from osd.bench.gamma.bench import bench_gamma, simulate_gamma
from osd.bench.gamma.plan import GammaPlan
from osd.bench.gamma.profiles import PROFILES, find_costs
from osd.bench.gamma.rounds_file import read_recording
from osd.bench.harness.prompts import listed, name_of, tokens_by_set
from osd.bench.harness.report import BenchResult
from osd.bench.harness.watch import Watch
from osd.demo.prompts import DOMAINS
from osd.models.pair import row_limit
from osd.server.start import choose_pair
from storage.errors import BadSetting
from storage.settings import Settings


def measure(
    settings: Settings, plan: GammaPlan, names: tuple[str | None, str | None], prompts: Sequence[str] | None,
    seed: int, out: Path, watch: Watch, *, insist: bool, sensitivity: bool,
) -> BenchResult:  # fmt: skip
    """Load the pair, draw as many prompts as the plan needs, measure."""
    chosen = choose_pair(settings.serve, *names)
    sets = tuple(name_of(Path(path)) for path in listed(prompts)) or tuple(DOMAINS)
    plan = replace(plan, target=chosen.target, draft=chosen.draft, data_sets=sets)
    pair = chosen.load(settings.serve)
    longest = row_limit(pair, settings.serve) - plan.max_tokens
    tokens = tokens_by_set(pair.tokenizer, prompts, plan.prompts_needed(), longest, seed=seed)
    return bench_gamma(pair, settings, plan, tokens, out, watch, insist=insist, sensitivity=sensitivity)


def replay(
    settings: Settings, plan: GammaPlan, path: Path, costs: str | None, out: Path, watch: Watch, *, insist: bool,
    sensitivity: bool,
) -> BenchResult:  # fmt: skip
    """Read the recording and the costs, replay."""
    if costs is None:
        reason = f"--simulate needs costs: costs.json of a run, or one of {', '.join(PROFILES)}"
        raise BadSetting(source="option", key="--costs", reason=reason)
    table, recording = find_costs(costs), read_recording(path)
    return simulate_gamma(recording, table, settings, plan, out, watch, insist=insist, sensitivity=sensitivity)
