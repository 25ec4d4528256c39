"""`python -m benchmarks rounds`: a pair's rounds recorded for the simulator, and nothing measured."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.gamma.contest import with_random_draft
from benchmarks.gamma.record import record_file
from osd.bench.harness.plan import Count, PairPlan, data_sets, facts_of
from osd.bench.harness.report import BenchResult
from osd.bench.harness.watch import Watch
from osd.models.pair import row_limit
from osd.server.start import choose_pair
from storage.settings import Settings


@dataclass(frozen=True, kw_only=True)
class RoundsPlan(PairPlan):
    """Record what a draft would guess at every position of the target's own texts, at temperatures 0 and 1.

    Example: `python -m benchmarks rounds --prompts gsm8k.jsonl,wikisql.jsonl --out pair.parquet`
    """

    out: Path
    """The recording; one that is there goes on."""
    count: Count = 8
    """Prompts of each data set."""
    max_tokens: Count = 64
    """Tokens of a text at most."""
    depth: Count = 12
    """Tokens of a chain."""
    random_draft: bool = False
    """The draft, with random weights."""


def bench_rounds(plan: RoundsPlan, settings: Settings, watch: Watch) -> BenchResult:
    """Record a pair's rounds for the simulator, and measure nothing."""
    pair = choose_pair(settings.serve, plan.target, plan.draft).load(settings.serve)
    longest = row_limit(pair, settings.serve) - plan.max_tokens - plan.depth
    sets = data_sets(plan, pair.tokenizer, plan.count, longest, seed=0)
    pair = with_random_draft(pair) if plan.random_draft else pair
    with watch.until_ctrl_c():
        record_file(
            plan.out, pair, sets, temperatures=(0.0, 1.0), new_tokens=plan.max_tokens, depth=plan.depth, watch=watch
        )
    facts, files = facts_of(plan, target=pair.target.name, draft=pair.draft.name), {"rounds": plan.out}
    return BenchResult("rounds", facts, {}, files={} if watch.stopped else files, interrupted=watch.stopped)
