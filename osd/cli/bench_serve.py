"""``osd bench serve``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osd.bench.harness.prompts import texts_by_set
from osd.cli.context import surroundings
from osd.cli.demo import INTERRUPTED
from osd.cli.options import DraftOption, JsonOption, PromptsOption, TargetOption, numbers
from osd.cli.out import Column, note, print_json, print_table
from osd.prompts import encode
from osd.server.start import choose_pair, leave_a_core
from storage.errors import BadRequest

if TYPE_CHECKING:
    from osd.models.pair import Pair

PROMPTS = 256
"""Taken from each file; they come again and again."""
ANSWER = 160
"""Tokens at most, and half so many at least: the median of answers in Azure's trace of conversations is 116."""
ENTRIES = 20_000
"""Taken from each trace."""
SecondsOption = Annotated[float, typer.Option(help="Seconds of each server at each level.", min=0.1)]
MaxTokensOption = Annotated[int, typer.Option(help="Tokens of an answer at most; half so many at least.", min=2)]


def serve(
    ctx: typer.Context,
    target: TargetOption = None,
    draft: DraftOption = None,
    prompts: PromptsOption = None,
    concurrency: Annotated[str, typer.Option(help="Clients at a time.", metavar="N,…")] = "1,2,4,8,16,32,64",
    seconds: SecondsOption = 15.0,
    turns: Annotated[int, typer.Option(help="Parts of them, in which the servers take turns.", min=1)] = 6,
    swaps: Annotated[int, typer.Option(help="New draft versions while it measures.", min=0)] = 20,
    max_tokens: MaxTokensOption = ANSWER,
    trace: Annotated[
        list[Path] | None,
        typer.Option(help="JSONL file with t_s, context_tokens, generated_tokens: arrivals to play; may be repeated."),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(help="Torch threads of servers and engine. Default: as `osd serve`, a core is left over.", min=1),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the run: the same command goes on there where it stopped.", metavar="DIR"),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Load a server with 1 to 64 clients: tokens a second, time to the first token and between tokens, failures.

    No drafts, fixed ones and goodput take turns; the server that is asked for the first and the last gets new versions
    while goodput is measured. Goodput's latencies are shown, and it is compared with the engine alone, with the same
    prompts and rows; ratios are medians of turns, there and back. Clients run on this machine and take a part of it.
    Ctrl-C ends it with the turns that are whole; with `--out` they are kept, and the same command goes on.

    Example: `osd bench serve --concurrency 1,8 --seconds 3 --json`
    """
    import torch

    from osd.bench.serve.bench import Plan, bench_serve
    from osd.bench.serve.trace import read_trace
    from osd.models.pair import row_limit

    settings = surroundings(ctx).settings
    if threads:
        settings = settings.changed(serve={"threads": threads})
    settings = leave_a_core(settings)
    pair = choose_pair(settings.serve, target, draft).load(settings.serve)
    limit = row_limit(pair, settings.serve)
    tokens = tokens_of(pair, prompts, limit, max_tokens)
    together = [token for prompt in tokens for token in prompt]
    traces = [read_trace(path, ENTRIES, together, limit, max_tokens) for path in trace or []]
    plan = Plan(numbers(concurrency, "--concurrency", int, 1), seconds, turns, swaps, max_tokens, traces)
    result = bench_serve(pair, tokens, settings, plan, note, out) | {"threads": torch.get_num_threads()}
    if not json:
        show(result)
    print_json(result)
    if "interrupted" in result:
        note("Stopped." + (f" The same command with --out {out} goes on from there." if out else ""))
        raise typer.Exit(INTERRUPTED)


def tokens_of(pair: Pair, files: list[Path] | None, limit: int, max_tokens: int) -> list[tuple[int, ...]]:
    """Prompts that a row of ``limit`` holds together with their answers; how many it does not is said. Raises
    BadRequest where none is left."""
    sets = texts_by_set([str(path) for path in files or []], PROMPTS)
    tokens = [encode(pair.tokenizer, text) for texts in sets.values() for text in texts]
    fitting = [prompt for prompt in tokens if len(prompt) + max_tokens <= limit]
    if not fitting:
        raise BadRequest(field="prompts", reason=f"none leaves {max_tokens} of a row's {limit} tokens to its answer")
    if left := len(tokens) - len(fitting):
        why = f"with {max_tokens} tokens to come they are longer than {limit}"
        note(f"{left} of {len(tokens)} prompts are left out: {why}.")
    return fitting


def show(result: dict[str, Any]) -> None:
    """The table."""
    rows = [{"clients": level, **line} for level, line in result["by_concurrency"].items()]
    rates = [Column(arm, f"{arm}, tok/s", _one, right=True) for arm in ("off", "fixed", "goodput")]
    times = ("ttft_ms_p50", "ttft_ms_p99", "tpot_ms_p50", "tpot_ms_p95", "tpot_ms_p99", "gap_ms_p99")
    shown = [Column(name, name, _one, right=True) for name in times]
    print_table(rows, [Column("clients", "clients"), *rates, *shown, Column("failed", "failed")])
    note(f"The engine alone: {_one(result['offline_tokens_per_s'])} tok/s; server ÷ engine at "
         f"{result['compared_at']} clients: {result['server_over_offline'] or 0:.3f} ± "
         f"{result['server_over_offline_error'] or 0:.3f}.")  # fmt: skip


def _one(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"
