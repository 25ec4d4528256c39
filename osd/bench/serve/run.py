"""What ``osd bench serve`` reads before it measures, and the line that it ends with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from osd.bench.harness.report import BenchResult
from osd.bench.harness.watch import note
from osd.bench.serve.bench import bench_serve
from osd.bench.serve.plan import ServePlan
from osd.bench.serve.prompts import prompts_that_fit
from osd.bench.serve.trace import read_trace
from osd.models.pair import row_limit
from osd.server.start import choose_pair, leave_a_core
from storage.settings import Settings

SHOWN = (
    "off", "fixed", "goodput", "ttft_ms_p50", "ttft_ms_p99", "tpot_ms_p50", "tpot_ms_p95", "tpot_ms_p99", "gap_ms_p99",
    "failed",
)  # fmt: skip


def measure(
    settings: Settings, names: tuple[str | None, str | None], prompts: Sequence[str] | None, traces: Sequence[Path],
    sizes: Mapping[str, Any], out: Path | None,
) -> BenchResult:  # fmt: skip
    """Load the pair, read prompts and traces, measure. ``sizes``: fields of :class:`ServePlan`. Raises what
    :func:`bench_serve` raises, and what reading raises."""
    settings = leave_a_core(settings)
    pair = choose_pair(settings.serve, *names).load(settings.serve)
    tokens = prompts_that_fit(pair, settings.serve, prompts, sizes["max_tokens"])
    together, limit = [token for prompt in tokens for token in prompt], row_limit(pair, settings.serve)
    played = [read_trace(path, together, limit, sizes["max_tokens"]) for path in traces]
    plan = ServePlan(**sizes, traces=played)
    figures = bench_serve(pair, tokens, settings, plan, note, out)
    facts = plan.facts() | {
        "target": pair.target.name, "draft": pair.draft.name, "prompts": len(tokens), "threads": torch.get_num_threads()
    }  # fmt: skip
    rows = [
        {"clients": int(level)} | {name: line[name] for name in SHOWN}
        for level, line in figures["by_concurrency"].items()
    ]
    return BenchResult("serve", facts, figures, {"Tokens a second, ms": rows}, {}, figures.pop("interrupted", False))
