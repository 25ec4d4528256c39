"""``osd bench decode``."""

from __future__ import annotations

from typing import Annotated

import typer

from osd.bench.harness.options import DraftOption, JsonOption, TargetOption
from osd.bench.harness.prompts import PromptFiles, numbers, tokens_by_set
from osd.bench.harness.watch import watching
from osd.cli.context import surroundings
from osd.cli.options import DrafterOption
from osd.server.start import choose_pair


def decode(
    ctx: typer.Context,
    target: TargetOption = None,
    draft: DraftOption = None,
    drafter: DrafterOption = None,
    prompts: PromptFiles = None,
    count: Annotated[int, typer.Option(help="Prompts of each data set.", min=1)] = 32,
    batch: Annotated[
        list[str] | None,
        typer.Option(
            help="Batch sizes; the first has the assisted modes beside it.", metavar="N,…", show_default="1,8"
        ),
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens to generate a prompt.", min=1)] = 64,
    turns: Annotated[int, typer.Option(help="Turns each contender takes.", min=1)] = 5,
    recorded: Annotated[int, typer.Option(help="Pairs of turns to tell what recording costs; 0: none.", min=0)] = 300,
    threads: Annotated[int | None, typer.Option(help="Torch threads, for every contender alike.", min=1)] = None,
    json: JsonOption = False,
) -> None:
    """Tokens a second: osd, the target alone, and transformers' plain and assisted generation, side by side.

    Example: `osd bench decode --target ./target --draft ./draft --prompts questions.jsonl --json`
    """
    import torch

    from osd.bench.decode import bench_decode
    from osd.models.pair import row_limit

    settings = surroundings(ctx).drafting(drafter)
    batches = numbers(batch or ["1,8"], "--batch", int, 1)
    pair = choose_pair(settings.serve, target, draft, drafter=settings.drafters.kind).load(settings.serve)
    if threads:
        torch.set_num_threads(threads)
    with watching() as watch:
        sets = tokens_by_set(pair.tokenizer, prompts, count, row_limit(pair, settings.serve) - max_tokens)
        result = bench_decode(
            pair, [tokens for some in sets.values() for tokens in some], settings, watch, batches=batches,
            new_tokens=max_tokens, turns=turns, recorded=recorded,
        )  # fmt: skip
    raise typer.Exit(result.show(as_json=json))
