"""``osd bench decode``."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from osd.cli.context import surroundings
from osd.cli.options import DrafterOption, DraftOption, JsonOption, PromptsOption, TargetOption, numbers
from osd.cli.out import Column, note, print_json, print_table
from osd.prompts import Prompt, encode, read_prompts
from osd.server.start import choose_pair
from storage.errors import BadPromptFile


def decode(
    ctx: typer.Context,
    target: TargetOption = None,
    draft: DraftOption = None,
    drafter: DrafterOption = None,
    prompts: PromptsOption = None,
    count: Annotated[int, typer.Option(help="Prompts taken from each file.", min=1)] = 32,
    batch: Annotated[str, typer.Option(help="Batch sizes, the first with the assisted modes beside it.")] = "1,8",
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

    settings = surroundings(ctx).drafting(drafter)
    pair = choose_pair(settings.serve, target, draft, drafter=settings.drafters.kind).load(settings.serve)
    if threads:
        torch.set_num_threads(threads)
    tokens = [encode(pair.tokenizer, text) for text in texts_of(prompts or [], count)]
    columns = (TextColumn("{task.description:<32}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, transient=True, console=Console(stderr=True)) as bar:
        task = bar.add_task("warming up", total=None)
        result = bench_decode(
            pair, tokens, settings, batches=numbers(batch, "--batch", int, 1), new_tokens=max_tokens, turns=turns,
            recorded=recorded,
            report=lambda done, total, name: bar.update(task, completed=done, total=total, description=name),
        )  # fmt: skip
    result["threads"] = torch.get_num_threads()
    if not json:
        _show(result)
    print_json(result)


def texts_of(files: list[Path], count: int) -> list[str]:
    """Prompts of all files in turn; broken lines are named and passed over. Without files, the demo's own."""
    if not files:
        from osd.demo.prompts import DOMAINS
        from osd.demo.prompts import prompts as shipped

        return [text for domain in DOMAINS for text in shipped(domain, count)]
    columns = []
    for path in files:
        good = []
        for line in islice(read_prompts(path), count):
            if isinstance(line, BadPromptFile):
                note(f"osd: {line}")
            elif isinstance(line, Prompt):
                good.append(line.text)
        columns.append(good)
    return [text for column in columns for text in column]


def _show(result: dict[str, Any]) -> None:
    rows = [{"how": "osd", **result["osd"]}, {"how": "target alone (osd)", **result["target_alone"]}]
    rows += [{"how": f"transformers {name}", **rates} for name, rates in result["transformers"].items()]
    sizes = list(result["osd"])
    show = [Column(size, f"batch {size}, tok/s", lambda v: f"{v:.1f}", right=True) for size in sizes]
    print_table(rows, [Column("how", "how"), *show], title="Greedy decoding, median of turns")
