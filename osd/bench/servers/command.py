"""``python -m osd.bench servers``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from osd.bench.harness.options import DraftOption, JsonOption, TargetOption
from osd.bench.harness.prompts import PromptFiles, numbers
from osd.bench.harness.report import BenchResult
from osd.bench.harness.watch import note
from osd.bench.serve.options import ClientsOption, SecondsOption
from osd.bench.serve.prompts import prompts_that_fit
from osd.bench.servers.bench import bench_servers
from osd.server.start import choose_pair
from storage.settings import load_settings


def command(
    target: TargetOption = None,
    draft: DraftOption = None,
    prompts: PromptFiles = None,
    concurrency: ClientsOption = None,
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

    Example: `python -m osd.bench servers --vllm /opt/vllm/bin/python --json`
    """
    settings = load_settings()
    pair = choose_pair(settings.serve, target, draft).load(settings.serve)
    tokens = prompts_that_fit(pair, settings.serve, prompts, max_tokens)
    figures = bench_servers(
        pair, tokens, settings, levels=numbers(concurrency or ["1,8"], "--concurrency", int, 1), seconds=seconds,
        max_tokens=max_tokens, vllm=vllm, report=note,
    )  # fmt: skip
    rows = [
        {"server": name} | {f"{level} at a time, tok/s": each["tokens_per_s"] for level, each in line.items()}
        for name, line in figures["servers"].items()
    ]
    for name, why in figures["not_running"].items():
        note(f"{name}: {why}")
    facts = {"target": pair.target.name, "draft": pair.draft.name, "seconds": seconds, "max_tokens": max_tokens}
    raise typer.Exit(BenchResult("servers", facts, figures, {"Tokens a second": rows}).show(as_json=json))
