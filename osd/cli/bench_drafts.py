"""`osd bench drafts`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from osd.cli.bench_progress import bars
from osd.cli.context import surroundings
from osd.cli.options import JsonOption, TargetOption
from osd.cli.out import Column, count, note, print_json, print_table, share
from osd.server.start import choose_pair
from storage.errors import BadSetting


def drafts(
    ctx: typer.Context,
    prompts: Annotated[
        list[Path],
        typer.Option(help="JSONL file, plain or .gz, with a `prompt` field; each file is a route.", metavar="FILE"),
    ],
    draft: Annotated[
        list[str], typer.Option(help="A draft's folder; give the option for each draft, two or more.", metavar="DIR")
    ],
    target: TargetOption = None,
    requests: Annotated[int, typer.Option(help="Prompts of each file that are timed.", metavar="N", min=1)] = 60,
    warm_up: Annotated[
        int, typer.Option(help="Further prompts of each file that only teach the router.", metavar="N", min=0)
    ] = 25,
    max_tokens: Annotated[int, typer.Option(help="Tokens of an answer at most.", metavar="N", min=1)] = 64,
    seed: Annotated[int, typer.Option(help="Which prompts are drawn.", metavar="N")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Choosing among drafts of different size against each of them alone.

    Every prompt is decoded with each draft and with the router's choice, in turn. `mischosen` is the share of prompts
    on which another draft would, in hindsight, have been faster by more than 2 %. `auto_vs_best` is the choice's speed
    ÷ that of the better draft; `choices_vs_best` the same with the seconds that the chosen drafts took alone, free of
    what differs between two decodings of one prompt; `choosing` what that leaves, a prompt's speed with choosing ÷
    without, in the median.

    Example: `osd bench drafts --target ./target --draft ./small --draft ./large --prompts sql.jsonl --json`
    """
    from osd.bench.drafts import AUTO, bench_drafts
    from osd.demo.runner.source import file_segments, fitting

    settings = surroundings(ctx).settings
    if len(draft) < 2 or len({Path(path).name for path in draft}) < len(draft):
        reason = "give --draft twice or more, with folders of different names"
        raise BadSetting(source="option", key="draft", reason=reason)
    pair = choose_pair(settings.serve, target, draft[0])
    fits = fitting(pair.target, settings.serve.max_length, max_tokens)
    segments, problems = file_segments(prompts, warm_up + requests, seed, fits)
    for problem in problems:
        note(problem)
    with bars(["drafts"], Console(stderr=True)) as watch:
        line = bench_drafts(
            settings, target=pair.target, drafts=[pair.draft, *draft[1:]], segments=segments, warm_up=warm_up,
            max_new_tokens=max_tokens, report=watch["drafts"],
        )  # fmt: skip
    if as_json:
        print_json(line)
        return
    rows = [
        {"set": name, **part, **part["tokens_per_s"]} for name, part in [*line["sets"].items(), ("all", line["all"])]
    ]
    speeds = [Column(name, name, count, True) for name in line["all"]["tokens_per_s"] if name != AUTO]
    columns = [
        Column("set", ""), *speeds, Column(AUTO, AUTO, count, True), Column("auto_vs_best", "÷ best", share, True),
        Column("mischosen", "mischosen", share, True),
    ]  # fmt: skip
    print_table(rows, columns, title="Tokens a second")
