"""`osd bench online`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from osd.bench.harness.options import (
    ArrivalOption,
    DraftOption,
    JsonOption,
    TargetOption,
    TemperatureOption,
    TopPOption,
    sampling_of,
)  # fmt: skip
from osd.bench.harness.prompts import PromptFiles, listed
from osd.bench.harness.watch import note
from osd.cli.context import surroundings
from osd.cli.demo import new_folder
from osd.server.start import choose_pair


def online(
    ctx: typer.Context,
    target: TargetOption = None,
    draft: DraftOption = None,
    prompts: PromptFiles = None,
    requests: Annotated[int, typer.Option(help="Prompts of each file.", min=1)] = 400,
    max_tokens: Annotated[int, typer.Option(help="Tokens of an answer at most.", min=1)] = 64,
    batch: Annotated[
        int | None, typer.Option(help="Requests decoded together. Default: serve.max_batch.", metavar="N", min=1)
    ] = None,
    arrival: ArrivalOption = "lockstep",
    temperature: TemperatureOption = 0.0,
    top_p: TopPOption = 1.0,
    drafter: Annotated[
        Literal["blended", "causal"],
        typer.Option(help="blended: the draft and a table of n-grams, in one chain. causal: the draft alone."),
    ] = "blended",
    recipe: Annotated[
        list[str] | None,
        typer.Option(
            help="How the draft learns; several are run one after another. osd: as the settings say. paper: one pass "
            "over refused positions, the buffer released, no gate.",
            metavar="osd,paper",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Which prompts of a file are drawn.")] = 0,
    in_order: Annotated[
        bool, typer.Option("--in-order", help="Take the first prompts of a file instead of drawing them.")
    ] = False,
    offline: Annotated[
        bool,
        typer.Option("--offline/--no-offline", help="Distil a draft offline on each segment too: the upper bound."),
    ] = True,
    out: Annotated[
        Path | None,
        typer.Option(help="New folder for report, picture and summary. Default: out/bench-online-…", metavar="DIR"),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the run's store there too: samples, versions, database.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Online learning over shifting traffic, for any pair and any prompts.

    Serves one file after another while a worker process trains the draft, and compares acceptance with the frozen
    draft and with a draft distilled offline for two epochs on the segment's own prompts. A line of a file that cannot
    be used is named by its number; the others go on.

    Example: `osd bench online --target ./target --draft ./draft --prompts sql.jsonl,chat.jsonl.gz --json`
    """
    from osd.bench.harness.prompts import choose
    from osd.bench.online import RECIPES, compared, run_bench_online
    from osd.demo.runner.source import segments_of

    recipes = choose(recipe or ["osd"], RECIPES, "--recipe")
    settings, folder = surroundings(ctx).settings, out or new_folder("bench-online")
    pair, paths = choose_pair(settings.serve, target, draft), [Path(name) for name in listed(prompts)]
    segments, problems = segments_of(
        paths, requests, None if in_order else seed, target=pair.target, max_length=settings.serve.max_length,
        max_new_tokens=max_tokens,
    )  # fmt: skip
    for problem in problems:
        note(problem)
    results = {}
    for name in recipes:
        results[name] = run_bench_online(
            settings, target=pair.target, draft=pair.draft, segments=segments, console=Console(stderr=json),
            out=folder if len(recipes) == 1 else folder / name, max_new_tokens=max_tokens, batch=batch, arrival=arrival,
            offline=offline, drafter=drafter, keep=keep, notes=problems, sampling=sampling_of(temperature, top_p),
            recipe=name,
        )  # fmt: skip
        if results[name].facts["interrupted"]:
            break
    raise typer.Exit(compared(results, folder).show(as_json=json))
