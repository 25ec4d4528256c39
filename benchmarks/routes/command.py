"""`python -m benchmarks routes`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from osd.bench.harness.options import (
    ArrivalOption,
    DraftOption,
    JsonOption,
    TargetOption,
    TemperatureOption,
    TopPOption,
    sampling_of,
)  # fmt: skip
from osd.bench.harness.prompts import PromptFiles, choose, listed
from osd.bench.harness.watch import note, watching
from osd.cli.demo import new_folder
from osd.server.start import choose_pair
from storage.settings import load_settings


def routes(
    target: TargetOption = None,
    draft: DraftOption = None,
    prompts: PromptFiles = None,
    requests: Annotated[int, typer.Option(help="Prompts of each data set that are served.", min=1)] = 400,
    max_tokens: Annotated[int, typer.Option(help="Tokens of an answer at most.", min=1)] = 64,
    batch: Annotated[int, typer.Option(help="Requests decoded together.", min=1)] = 4,
    arms: Annotated[
        list[str] | None,
        typer.Option(
            help="What is compared: single, routed, routed_lora, by_language.", metavar="NAME,…",
            show_default="single,routed,routed_lora",
        ),
    ] = None,
    order: Annotated[
        str,
        typer.Option(
            help="mixed: request by request. abrupt: one domain after another. gradual: each fades into the next. "
            "linear: the first fades into the last from begin to end. apart: mixed, but "
            "learned from the first alone in the first half, and from the others alone then.",
            metavar="mixed|abrupt|gradual|linear|apart",
        ),
    ] = "mixed",
    arrival: ArrivalOption = "lockstep",
    temperature: TemperatureOption = 0.0,
    top_p: TopPOption = 1.0,
    seed: Annotated[int, typer.Option(help="Which prompts are drawn, and their order.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for picture and summary; given again, it goes on.", metavar="DIR"),
    ] = None,
    json: JsonOption = False,
) -> None:  # fmt: skip
    """A draft for each kind of traffic against one draft for all of it.

    Serves prompts of several domains in one stream, unlabelled, while a worker process trains: once with a single
    draft, once with a draft for each route, once with an adapter for each. 80 further prompts of each file teach the
    topics. A run that was stopped goes on with the same --out.

    Example: `python -m benchmarks routes --prompts sql.jsonl,chat.jsonl.gz --requests 200 --json`
    """
    from benchmarks.routes.bench import TEACHING, bench_routes
    from benchmarks.routes.traffic import ARMS, USUAL
    from osd.demo.runner.source import segments_of

    settings, chosen = load_settings(), choose(arms or USUAL, ARMS, "--arms")
    pair, folder = choose_pair(settings.serve, target, draft), out or new_folder("bench-routes")
    paths = [Path(name) for name in listed(prompts)]
    segments, problems = segments_of(
        paths, requests + TEACHING, seed, target=pair.target, max_length=settings.serve.max_length,
        max_new_tokens=max_tokens,
    )  # fmt: skip
    for problem in problems:
        note(problem)
    with watching(folder) as watch:
        result = bench_routes(
            settings, watch, target=pair.target, draft=pair.draft, segments=segments, arms=chosen, out=folder,
            order=order, max_new_tokens=max_tokens, batch=batch, arrival=arrival, seed=seed,
            sampling=sampling_of(temperature, top_p),
        )  # fmt: skip
    raise typer.Exit(result.show(as_json=json))
