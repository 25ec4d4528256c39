"""`python -m benchmarks drafts`."""

from __future__ import annotations

from typing import Annotated

import typer

from osd.bench.harness.options import JsonOption, TargetOption, TemperatureOption, TopPOption, sampling_of
from osd.bench.harness.prompts import PromptFiles, listed
from osd.bench.harness.watch import watching
from storage.settings import load_settings


def drafts(
    draft: Annotated[list[str], typer.Option(help="Drafts' folders, two or more.", metavar="DIR,…")],
    prompts: PromptFiles = None,
    target: TargetOption = None,
    requests: Annotated[int, typer.Option(help="Prompts of each file that are timed.", metavar="N", min=1)] = 60,
    warm_up: Annotated[
        int, typer.Option(help="Further prompts of each file that only teach the router.", metavar="N", min=0)
    ] = 25,
    max_tokens: Annotated[int, typer.Option(help="Tokens of an answer at most.", metavar="N", min=1)] = 64,
    temperature: TemperatureOption = 0.0,
    top_p: TopPOption = 1.0,
    seed: Annotated[int, typer.Option(help="Which prompts are drawn.", metavar="N")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Choosing among drafts of different size against each of them alone. Each file of prompts is a route.

    Every prompt is decoded with each draft and with the router's choice, in turn. `mischosen` is the share of prompts
    on which another draft would, in hindsight, have been faster by more than 2 %. `auto_vs_best` is the choice's speed
    ÷ that of the better draft; `choices_vs_best` the same with the seconds that the chosen drafts took alone, free of
    what differs between two decodings of one prompt; `choosing` what that leaves, a prompt's speed with choosing ÷
    without, in the median.

    Example: `python -m benchmarks drafts --target ./target --draft ./small,./large --prompts sql.jsonl --json`
    """
    from benchmarks.drafts import bench_drafts

    with watching() as watch:
        result = bench_drafts(
            load_settings(), watch, target=target, drafts=listed(draft), prompts=prompts, requests=requests,
            warm_up=warm_up, max_new_tokens=max_tokens, seed=seed, sampling=sampling_of(temperature, top_p),
        )  # fmt: skip
    raise typer.Exit(result.show(as_json=as_json))
