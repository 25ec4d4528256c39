"""``osd bench soak``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from osd.cli.bench_serve import ENTRIES, MaxTokensOption, tokens_of
from osd.cli.context import surroundings
from osd.cli.options import DraftOption, JsonOption, PromptsOption, TargetOption
from osd.cli.out import Column, note, print_json, print_table
from osd.server.start import choose_pair


def soak(
    ctx: typer.Context,
    target: TargetOption = None,
    draft: DraftOption = None,
    prompts: PromptsOption = None,
    minutes: Annotated[float, typer.Option(help="How long.", min=0.05)] = 30.0,
    every: Annotated[float, typer.Option(help="Seconds between two looks at the processes.", min=0.1)] = 5.0,
    measuring: Annotated[float, typer.Option(help="Seconds to find out what the server can do.", min=0.5)] = 20.0,
    max_tokens: MaxTokensOption = 64,
    trace: Annotated[
        Path | None,
        typer.Option(help="JSONL file with t_s, context_tokens, generated_tokens: its arrivals and lengths."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the picture and the worker's log.", metavar="DIR")] = (
        Path("out/soak")
    ),
    json: JsonOption = False,
) -> None:
    """A server at 80 % of what it can do, a worker that learns beside it: does memory grow, do files or threads?

    Growth is counted from a fifth of the time on, after caches have filled. Ctrl-C ends it with what there is.

    Example: `osd bench soak --minutes 30 --json`
    """
    from osd.bench.serve.trace import read_trace
    from osd.bench.serve.turns import shuffled_jobs
    from osd.bench.soak.run import Plan, bench_soak
    from osd.models.pair import row_limit

    settings = surroundings(ctx).settings
    pair = choose_pair(settings.serve, target, draft).load(settings.serve)
    limit = row_limit(pair, settings.serve)
    tokens = tokens_of(pair, prompts, limit, max_tokens)
    together = [token for prompt in tokens for token in prompt]
    arrivals = read_trace(trace, ENTRIES, together, limit, max_tokens) if trace else None
    plan = Plan(minutes, every, measuring, shuffled_jobs(tokens, max_tokens), arrivals)
    result = bench_soak(pair, settings, plan, out, note)
    if not json:
        _show(result)
    print_json(result)


def _show(result: dict[str, Any]) -> None:
    rows = [
        {"process": role, **found, "growth": f"{found['growth']:+.1%}"} for role, found in result["processes"].items()
    ]
    names = {"memory_mb": "memory, MiB", "growth": "growth", "files": "files", "threads": "threads"}
    print_table(rows, [Column("process", "process"), *(Column(key, name) for key, name in names.items())])
    note(f"{result['requests']} requests, {result['failed']} failed, {result['published']} versions published. "
         f"Curves: {result['picture']}")  # fmt: skip
