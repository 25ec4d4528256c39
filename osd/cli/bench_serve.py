"""``osd bench serve``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from osd.bench.harness.options import (
    ClientsOption,
    DraftOption,
    JsonOption,
    MaxTokensOption,
    SecondsOption,
    TargetOption,
)
from osd.bench.harness.prompts import PromptFiles, listed, numbers
from osd.bench.harness.watch import watching
from osd.cli.context import surroundings


def serve(
    ctx: typer.Context,
    target: TargetOption = None,
    draft: DraftOption = None,
    prompts: PromptFiles = None,
    concurrency: ClientsOption = None,
    seconds: SecondsOption = 15.0,
    turns: Annotated[int, typer.Option(help="Parts of them, in which the servers take turns.", min=1)] = 6,
    swaps: Annotated[int, typer.Option(help="New draft versions while it measures.", min=0)] = 20,
    max_tokens: MaxTokensOption = 160,
    trace: Annotated[
        list[str] | None,
        typer.Option(
            help="JSONL files with t_s, context_tokens, generated_tokens: arrivals to play.", metavar="FILE,…"
        ),
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
    from osd.bench.serve.bench import bench_serve

    levels = numbers(concurrency or ["1,2,4,8,16,32,64"], "--concurrency", int, 1)
    sizes = {"levels": levels, "seconds": seconds, "turns": turns, "swaps": swaps, "max_tokens": max_tokens}
    settings = surroundings(ctx).settings
    settings = settings.changed(serve={"threads": threads}) if threads else settings
    traces = [Path(path) for path in listed(trace)]
    with watching(out) as watch:
        result = bench_serve(settings, (target, draft), prompts, traces, sizes, out, watch)
    raise typer.Exit(result.show(as_json=json))
