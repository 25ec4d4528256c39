"""`python -m benchmarks rounds`: a pair's rounds recorded for the simulator, and nothing measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.gamma.contest import with_random_draft
from benchmarks.gamma.record import record_file
from osd.bench.harness.options import DraftOption, JsonOption, TargetOption
from osd.bench.harness.prompts import PromptFiles, tokens_by_set
from osd.bench.harness.report import BenchResult
from osd.bench.harness.watch import watching
from osd.models.pair import row_limit
from osd.server.start import choose_pair
from storage.settings import load_settings


def command(
    out: Annotated[Path, typer.Option(help="The recording; one that is there goes on.", metavar="FILE")],
    target: TargetOption = None,
    draft: DraftOption = None,
    prompts: PromptFiles = None,
    count: Annotated[int, typer.Option(help="Prompts of each data set.", min=1)] = 8,
    max_tokens: Annotated[int, typer.Option(help="Tokens of a text at most.", min=1)] = 64,
    depth: Annotated[int, typer.Option(help="Tokens of a chain.", min=1)] = 12,
    random_draft: Annotated[bool, typer.Option("--random-draft", help="The draft, with random weights.")] = False,
    json: JsonOption = False,
) -> None:
    """Record what a draft would guess at every position of the target's own texts, at temperatures 0 and 1.

    Example: `python -m benchmarks rounds --prompts gsm8k.jsonl,wikisql.jsonl --out pair.parquet`
    """
    settings = load_settings()
    pair = choose_pair(settings.serve, target, draft).load(settings.serve)
    sets = tokens_by_set(pair.tokenizer, prompts, count, row_limit(pair, settings.serve) - max_tokens - depth, seed=0)
    pair = with_random_draft(pair) if random_draft else pair
    with watching() as watch, watch.until_ctrl_c():
        record_file(out, pair, sets, temperatures=(0.0, 1.0), new_tokens=max_tokens, depth=depth, watch=watch)
    facts = {"target": pair.target.name, "draft": pair.draft.name, "prompts": count, "max_new_tokens": max_tokens}
    stopped = watch.stopped
    files = {} if stopped else {"rounds": out}
    raise typer.Exit(BenchResult("rounds", facts, {}, files=files, interrupted=stopped).show(as_json=json))
