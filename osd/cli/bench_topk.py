"""``osd bench topk``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from osd.cli.bench_decode import texts_of
from osd.cli.context import surroundings
from osd.cli.options import DraftOption, JsonOption, PromptsOption, TargetOption
from osd.cli.out import Column, note, print_json, print_table
from osd.prompts import encode
from osd.server.start import choose_pair


def _small(value: float) -> str:
    return f"{value:.2e}"


COLUMNS = (
    Column("temperature", "τ", str, right=True), Column("k", "k", str, right=True),
    Column("overlap", "Σ min(p, q)", _small, right=True), Column("overlap_bound", "bound", _small, right=True),
    Column("kl", "KL", _small, right=True), Column("kl_bound", "bound", _small, right=True),
    Column("gradient", "gradient", _small, right=True), Column("gradient_bound", "bound", _small, right=True),
)  # fmt: skip


def topk(
    ctx: typer.Context,
    target: TargetOption = None,
    draft: DraftOption = None,
    prompts: PromptsOption = None,
    count: Annotated[int, typer.Option(help="Prompts taken from each file.", min=1)] = 16,
    each: Annotated[int, typer.Option(help="Positions of the answer to each prompt.", min=1)] = 8,
    picture: Annotated[Path | None, typer.Option(help="Draw errors and bounds.", metavar="FILE")] = None,
    json: JsonOption = False,
) -> None:
    """The error that keeping storage.top_k log-probabilities makes, beside its bound; and k for an error asked for.

    Example: `osd bench topk --target ./target --draft ./draft --prompts questions.jsonl --picture topk.png`
    """
    from osd.bench.topk import bench_topk, draw, look

    settings = surroundings(ctx).settings
    pair = choose_pair(settings.serve, target, draft).load(settings.serve)
    texts = [encode(pair.tokenizer, text) for text in texts_of(prompts or [], count)]
    seen = look(pair, [text for text in texts if len(text) > 1], each)
    columns = (TextColumn("errors and bounds"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, transient=True, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=None)
        result = bench_topk(seen, lambda done, total: bar.update(task, completed=done, total=total))
    if picture is not None:
        draw(result, picture)
        note(f"Drawn: {picture}")
    if not json:
        print_table(result["rows"], COLUMNS, title="Mean error over positions")
        for error, k in result["k_for_error"].items():
            note(f"For an error of {error} in Σ min(p, q) at most: storage.top_k = {k}")
    print_json(result)
