"""``python -m benchmarks trees``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from osd.bench.harness.options import DraftOption, JsonOption, TargetOption
from osd.bench.harness.prompts import PromptFiles, listed, tokens_by_set
from osd.bench.harness.watch import watching
from osd.server.start import choose_pair
from storage.errors import BadInput
from storage.settings import load_settings


def trees(
    corpus: Annotated[
        list[str],
        typer.Option(
            help="JSONL files with `prompt` and `response` that tables are made of; none of --prompts.",
            metavar="FILE,…",
        ),
    ],
    prompts: PromptFiles = None,
    target: TargetOption = None,
    draft: DraftOption = None,
    count: Annotated[int, typer.Option(help="Prompts drawn from each data set.", min=2)] = 16,
    max_tokens: Annotated[int, typer.Option(help="Tokens of an answer at most.", min=1)] = 128,
    answers: Annotated[
        int, typer.Option(help="So many prompts of each corpus file are answered by the target, for the corpus.", min=0)
    ] = 64,
    nodes: Annotated[int, typer.Option(help="Drafted tokens of a tree at most.", min=1, max=1024)] = 32,
    depth: Annotated[int, typer.Option(help="How deep a tree may be.", min=1, max=64)] = 16,
    sensitivity: Annotated[
        bool, typer.Option("--sensitivity/--no-sensitivity", help="Also by temperature, top-p and corpus size.")
    ] = True,
    out: Annotated[Path, typer.Option(help="Folder of figures and pictures; a run goes on there.", metavar="DIR")] = (
        Path("out/trees")
    ),
    json: JsonOption = False,
) -> None:
    """Accept length and tokens a second of every way to draft: look-up, suffixes, n-gram trees, the draft, both.

    accept_length is measured with every tree as deep as it may be, tokens_per_s with gamma.rule in charge. Greedy
    texts are compared with the target's own.

    Example: `python -m benchmarks trees --target ./target --draft ./draft --prompts chat.jsonl --corpus other.jsonl`
    """
    from benchmarks.trees.bench import bench_trees
    from osd.models.pair import row_limit

    known = [Path(name) for name in listed(corpus)]
    if same := {Path(name).resolve() for name in listed(prompts)} & {path.resolve() for path in known}:
        reason = f"{same.pop()} is among --prompts and --corpus: a table would know the answers"
        raise BadInput(reason=f"{reason}; give other files.")
    settings = load_settings()
    pair = choose_pair(settings.serve, target, draft).load(settings.serve)
    with watching(out) as watch:
        data_sets = tokens_by_set(pair.tokenizer, prompts, count, row_limit(pair, settings.serve) - max_tokens, seed=0)
        result = bench_trees(
            pair, settings, data_sets, known, out, watch, new_tokens=max_tokens, answers=answers, nodes=nodes,
            depth=depth, sensitivity=sensitivity,
        )  # fmt: skip
    raise typer.Exit(result.show(as_json=json))
