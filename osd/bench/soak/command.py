"""``python -m osd.bench soak``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from osd.bench.harness.options import DraftOption, JsonOption, TargetOption
from osd.bench.harness.prompts import PromptFiles
from osd.bench.harness.report import BenchResult
from osd.bench.harness.watch import note
from osd.bench.serve.options import MaxTokensOption
from osd.bench.serve.prompts import prompts_that_fit
from osd.bench.serve.trace import read_trace
from osd.bench.serve.turns import shuffled_jobs
from osd.bench.soak.run import SoakPlan, bench_soak
from osd.models.pair import row_limit
from osd.server.start import choose_pair
from storage.settings import load_settings


def command(
    target: TargetOption = None,
    draft: DraftOption = None,
    prompts: PromptFiles = None,
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

    Example: `python -m osd.bench soak --minutes 30 --json`
    """
    settings = load_settings()
    pair = choose_pair(settings.serve, target, draft).load(settings.serve)
    tokens = prompts_that_fit(pair, settings.serve, prompts, max_tokens)
    together = [token for prompt in tokens for token in prompt]
    arrivals = read_trace(trace, together, row_limit(pair, settings.serve), max_tokens) if trace else None
    plan = SoakPlan(minutes, every, measuring, shuffled_jobs(tokens, max_tokens), arrivals)
    found = bench_soak(pair, settings, plan, out, note)
    rows = [{"process": role, **each, "growth": f"{each['growth']:+.1%}"} for role, each in found["processes"].items()]
    facts = {"target": pair.target.name, "draft": pair.draft.name, "minutes": minutes, "max_tokens": max_tokens}
    interrupted, picture = found.pop("interrupted"), Path(found.pop("picture"))
    result = BenchResult("soak", facts, found, {"Processes": rows}, {"curves": picture}, interrupted)
    raise typer.Exit(result.show(as_json=json))
