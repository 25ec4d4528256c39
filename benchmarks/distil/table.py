"""The whole table, from files of prompts to what the bench tells."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.distil.bench import LOG, DistilCell, DistilPlan, bench_distil, split
from benchmarks.distil.result import figures_of, tables_of
from osd.bench.harness.folder import RunFolder
from osd.bench.harness.prompts import listed, tokens_by_set
from osd.bench.harness.report import BenchResult
from osd.bench.harness.watch import Watch
from osd.models.pair import Pair, row_limit
from storage.settings import Settings


def bench_table(
    pair: Pair, settings: Settings, plan: DistilPlan, watch: Watch, *, prompts: Sequence[str] | None, requests: int,
    test_requests: int, seed: int,
) -> BenchResult:  # fmt: skip
    """Measure ``requests`` prompts of each file, tested on ``test_requests`` others; go on where the folder holds a
    run of the same plan. Raises BadInput, BadPromptFile, BadSetting, TrainingFailed and StoreWriteFailed."""
    longest = row_limit(pair, settings.serve) - plan.max_new_tokens
    sets = tokens_by_set(pair.tokenizer, prompts, requests + test_requests, longest, seed=seed)
    splits = split(sets, test_requests)
    facts = {
        "target": pair.target.name, "draft": pair.draft.name, "prompts": listed(prompts), "requests": requests,
        "test_requests": test_requests, "positions": plan.positions, "max_new_tokens": plan.max_new_tokens,
        "epochs": plan.epochs, "temperatures": plan.temperatures, "top_p": plan.top_p, "mix": settings.learn.mix,
        "seed": seed, "learning_rate": settings.learn.learning_rate, "jsd_beta": settings.learn.jsd_beta,
    }  # fmt: skip
    folder = RunFolder(plan.out, facts, LOG, DistilCell)
    cells = bench_distil(pair, settings, splits, plan, folder, watch)
    files = {"every text": plan.out / LOG}
    return BenchResult("distil", facts, figures_of(cells), tables_of(cells), files, watch.stopped)
