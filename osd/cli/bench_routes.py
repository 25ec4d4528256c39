"""`osd bench routes`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from osd.cli.context import surroundings
from osd.cli.demo import INTERRUPTED, new_folder
from osd.cli.options import DraftOption, JsonOption, MoreFilesArgument, TargetOption
from osd.cli.out import Column, note, print_json, print_table, share
from osd.server.start import choose_pair
from storage.errors import BadSetting


def routes(
    ctx: typer.Context,
    files: MoreFilesArgument = None,
    target: TargetOption = None,
    draft: DraftOption = None,
    prompts: Annotated[
        list[Path] | None,
        typer.Option(
            help="JSONL file, plain or .gz, with a `prompt` field; each file is a domain. Default: the demo's domains.",
            metavar="FILE",
        ),
    ] = None,
    requests: Annotated[int, typer.Option(help="Prompts of each file that are served.", metavar="N", min=1)] = 400,
    max_tokens: Annotated[int, typer.Option(help="Tokens of an answer at most.", metavar="N", min=1)] = 64,
    batch: Annotated[int | None, typer.Option(help="Requests decoded together.", metavar="N", min=1)] = 4,
    arms: Annotated[
        str, typer.Option(help="What is compared, of single, routed and routed_lora.", metavar="NAME,…")
    ] = "single,routed,routed_lora",
    order: Annotated[
        str,
        typer.Option(
            help="mixed: request by request. abrupt: one domain after another. gradual: each fades into the next.",
            metavar="mixed|abrupt|gradual",
        ),
    ] = "mixed",
    arrival: Annotated[
        str, typer.Option(help="As for `osd bench online`.", metavar="lockstep|paced|free")
    ] = "lockstep",
    seed: Annotated[int, typer.Option(help="Which prompts are drawn, and their order.", metavar="N")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for picture and summary; given again, it goes on.", metavar="DIR"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """A draft for each kind of traffic against one draft for all of it.

    Serves prompts of several domains in one stream, unlabelled, while a worker process trains: once with a single
    draft, once with a draft for each route, once with an adapter for each. 80 further prompts of each file teach the
    topics. A run that was stopped goes on with the same --out.

    Example: `osd bench routes --prompts sql.jsonl --prompts chat.jsonl.gz --requests 200 --json`
    """
    from osd.bench.routes.arms import require_arms
    from osd.bench.routes.run import TEACHING, run_bench_routes
    from osd.cli.bench_progress import bars
    from osd.demo.prompts import DOMAINS
    from osd.demo.runner.source import demo_segments, file_segments, fitting

    settings = surroundings(ctx).settings
    chosen = require_arms([name for name in arms.split(",") if name])
    pair = choose_pair(settings.serve, target, draft)
    many = requests + TEACHING
    if paths := [*(prompts or []), *(files or [])]:
        segments, problems = file_segments(
            paths, many, seed, fitting(pair.target, settings.serve.max_length, max_tokens)
        )
        for problem in problems:
            note(problem)
    else:
        segments = demo_segments(many, seed, tuple(DOMAINS))
    for segment in segments:
        if len(segment.prompts) <= TEACHING:
            reason = f"{segment.name} has {len(segment.prompts)} prompts; {TEACHING} teach, so give more"
            raise BadSetting(source="option", key="prompts", reason=reason)
    folder = out or new_folder("bench-routes")
    console = Console(stderr=True)
    try:
        with bars(chosen, console) as watch:
            line = run_bench_routes(
                settings, target=pair.target, draft=pair.draft, segments=segments, arms=chosen, out=folder, watch=watch,
                order=order, max_new_tokens=max_tokens, batch=batch, arrival=arrival, seed=seed,
            )  # fmt: skip
    except KeyboardInterrupt:
        note(f"Stopped; the arms that are done are kept. Go on with --out {folder}")
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        print_json(line)
        return
    rows = [{"domain": name, **parts} for name, parts in line["domains"].items()]
    columns = [Column("domain", ""), *(Column(arm, arm, share, True) for arm in ("frozen", *chosen))]
    print_table(rows, columns, title="Acceptance of the last 100 requests")
    note(f"{folder}/routes.png")
