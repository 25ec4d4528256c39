"""``osd bench servers``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from osd.cli.bench_serve import SecondsOption, tokens_of
from osd.cli.context import surroundings
from osd.cli.options import DraftOption, JsonOption, PromptsOption, TargetOption, numbers
from osd.cli.out import Column, note, print_json, print_table
from osd.server.start import choose_pair


def servers(
    ctx: typer.Context,
    target: TargetOption = None,
    draft: DraftOption = None,
    prompts: PromptsOption = None,
    concurrency: Annotated[str, typer.Option(help="Clients at a time.", metavar="N,…")] = "1,8",
    seconds: SecondsOption = 6.0,
    max_tokens: Annotated[int, typer.Option(help="Tokens of every answer.", min=2)] = 64,
    vllm: Annotated[
        Path | None, typer.Option(help="Python of an environment that has vLLM; without it vLLM is left out.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Tokens a second of osd's server beside `transformers serve` and vLLM: same prompts, same run, in turns.

    transformers serves one at a time, with its continuous batching, and with look-up in the prompt, the only
    speculation that it offers. vLLM serves as it is, with the draft, and with look-up. What does not start is named.

    Example: `osd bench servers --vllm /opt/vllm/bin/python --json`
    """
    from osd.bench.servers.bench import bench_servers
    from osd.models.pair import row_limit

    settings = surroundings(ctx).settings
    pair = choose_pair(settings.serve, target, draft).load(settings.serve)
    tokens = tokens_of(pair, prompts, row_limit(pair, settings.serve), max_tokens)
    result = bench_servers(
        pair, tokens, settings, levels=numbers(concurrency, "--concurrency", int, 1), seconds=seconds,
        max_tokens=max_tokens, vllm=vllm, report=note,
    )  # fmt: skip
    if not json:
        _show(result)
    print_json(result)


def _show(result: dict[str, Any]) -> None:
    levels = sorted({level for line in result["servers"].values() for level in line}, key=int)
    rows = [
        {"server": name, **{level: f"{line[level]['tokens_per_s']:.1f}" for level in levels}}
        for name, line in result["servers"].items()
    ]
    print_table(rows, [Column("server", "server"), *(Column(n, f"{n} at a time, tok/s", right=True) for n in levels)])
    for name, why in result["not_running"].items():
        note(f"{name}: {why}")
