"""``osd bench serve``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from osd.cli.bench_decode import texts_of
from osd.cli.context import surroundings
from osd.cli.options import DraftOption, JsonOption, TargetOption, numbers
from osd.cli.out import Column, note, print_json, print_table
from osd.cli.pair import choose_pair
from osd.prompts import encode


def serve(
    ctx: typer.Context,
    target: TargetOption = None,
    draft: DraftOption = None,
    prompts: Annotated[
        list[Path] | None, typer.Option(help="JSONL file with a `prompt` field; may be repeated.")
    ] = None,
    concurrency: Annotated[str, typer.Option(help="Clients at a time.", metavar="N,…")] = "1,2,4,8,16,32,64",
    count: Annotated[int, typer.Option(help="Answers a client.", min=1)] = 4,
    max_tokens: Annotated[int, typer.Option(help="Tokens of every answer.", min=2)] = 64,
    json: JsonOption = False,
) -> None:
    """Load a server with 1 to 64 clients: tokens a second, time to the first token and between tokens, failures.

    Three servers take turns: without drafts, with fixed ones, with goodput. The latter is also compared with the engine
    alone, which has the same prompts and a full batch. Clients run on this machine and take their part of it.

    Example: `osd bench serve --concurrency 1,8 --json`
    """
    from osd.bench.serve.bench import bench_serve

    settings = surroundings(ctx).settings
    pair = choose_pair(settings.serve, target, draft).load(settings.serve)
    tokens = [encode(pair.tokenizer, text) for text in texts_of(prompts or [], 16)]
    levels = numbers(concurrency, "--concurrency", int, 1)
    result = bench_serve(pair, tokens, settings, levels=levels, count=count, max_tokens=max_tokens, report=note)
    if not json:
        show(result)
    print_json(result)


def show(result: dict[str, Any]) -> None:
    """The table."""
    rows = [{"clients": level, **line} for level, line in result["by_concurrency"].items()]
    rates = [Column(arm, f"{arm}, tok/s", _one, right=True) for arm in ("off", "fixed", "goodput")]
    times = ("ttft_ms_p50", "ttft_ms_p99", "tpot_ms_p50", "tpot_ms_p95", "tpot_ms_p99")
    shown = [Column(name, name, _one, right=True) for name in times]
    print_table(rows, [Column("clients", "clients"), *rates, *shown, Column("failed", "failed")])
    note(f"The engine alone: {result['offline_tokens_per_s']:.1f} tok/s; server ÷ engine at "
         f"{result['compared_at']} clients: {result['server_over_offline']:.2f}.")  # fmt: skip


def _one(value: float) -> str:
    return f"{value:.1f}"
