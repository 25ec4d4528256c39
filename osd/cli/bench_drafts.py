"""`osd bench drafts`."""

from __future__ import annotations

from typing import Annotated

import typer

from osd.bench.harness.options import JsonOption, TargetOption
from osd.bench.harness.prompts import PromptFiles, fitting_texts, listed
from osd.bench.harness.watch import watching
from osd.cli.context import surroundings
from osd.server.start import choose_pair


def drafts(
    ctx: typer.Context,
    draft: Annotated[list[str], typer.Option(help="Drafts' folders, two or more.", metavar="DIR,…")],
    prompts: PromptFiles = None,
    target: TargetOption = None,
    requests: Annotated[int, typer.Option(help="Prompts of each file that are timed.", metavar="N", min=1)] = 60,
    warm_up: Annotated[
        int, typer.Option(help="Further prompts of each file that only teach the router.", metavar="N", min=0)
    ] = 25,
    max_tokens: Annotated[int, typer.Option(help="Tokens of an answer at most.", metavar="N", min=1)] = 64,
    seed: Annotated[int, typer.Option(help="Which prompts are drawn.", metavar="N")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Choosing among drafts of different size against each of them alone. Each file of prompts is a route.

    Every prompt is decoded with each draft and with the router's choice, in turn. `mischosen` is the share of prompts
    on which another draft would, in hindsight, have been faster by more than 2 %. `auto_vs_best` is the choice's speed
    ÷ that of the better draft; `choices_vs_best` the same with the seconds that the chosen drafts took alone, free of
    what differs between two decodings of one prompt; `choosing` what that leaves, a prompt's speed with choosing ÷
    without, in the median.

    Example: `osd bench drafts --target ./target --draft ./small,./large --prompts sql.jsonl --json`
    """
    from osd.bench.drafts import bench_drafts, require_several
    from osd.demo.runner.source import fitting

    settings, folders = surroundings(ctx).settings, listed(draft)
    require_several(folders)
    pair = choose_pair(settings.serve, target, folders[0])
    fits = fitting(pair.target, settings.serve.max_length, max_tokens)
    sets = fitting_texts(prompts, warm_up + requests, fits, seed=seed)
    with watching() as watch:
        result = bench_drafts(
            settings, target=pair.target, drafts=folders, sets=sets, watch=watch, warm_up=warm_up,
            max_new_tokens=max_tokens,
        )  # fmt: skip
    raise typer.Exit(result.show(as_json=as_json))
