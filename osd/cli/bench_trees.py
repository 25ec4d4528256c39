"""``osd bench trees``."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from osd.cli.context import surroundings
from osd.cli.options import DraftOption, JsonOption, TargetOption
from osd.cli.out import Column, note, print_json, print_table
from osd.prompts import Prompt, encode, read_prompts
from osd.server.start import choose_pair
from storage.errors import BadInput


def trees(
    ctx: typer.Context,
    prompts: Annotated[
        list[Path], typer.Option(help="JSONL file with a `prompt` field; may be repeated.", metavar="FILE")
    ],
    corpus: Annotated[
        list[Path],
        typer.Option(
            help="JSONL file with `prompt` and `response` that tables are made of; not one of --prompts.",
            metavar="FILE",
        ),
    ],
    target: TargetOption = None,
    draft: DraftOption = None,
    count: Annotated[int, typer.Option(help="Prompts taken from each file, evenly.", min=2)] = 16,
    max_tokens: Annotated[int, typer.Option(help="Tokens of an answer at most.", min=1)] = 128,
    answers: Annotated[
        int, typer.Option(help="Of each corpus file so many prompts are answered by the target, for the corpus.", min=0)
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

    Example: `osd bench trees --target ./target --draft ./draft --prompts chat.jsonl --corpus other.jsonl --json`
    """
    from osd.bench.trees.bench import bench_trees

    if same := {path.resolve() for path in prompts} & {path.resolve() for path in corpus}:
        reason = f"{same.pop()} is among --prompts and --corpus: a table would know the answers"
        raise BadInput(reason=f"{reason}; give other files.")
    settings = surroundings(ctx).settings
    pair = choose_pair(settings.serve, target, draft).load(settings.serve)
    longest = min(settings.serve.max_length, pair.limit) - max_tokens
    data_sets = {_name(path): _some(pair.tokenizer, path, count, longest) for path in prompts}
    columns = (TextColumn("{task.description:<36}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, transient=True, console=Console(stderr=True)) as bar:
        task = bar.add_task("reading", total=None)
        line, files = bench_trees(
            pair, settings, data_sets, corpus, out, new_tokens=max_tokens, answers=answers, nodes=nodes, depth=depth,
            sensitivity=sensitivity,
            told=lambda done, total, name: bar.update(task, completed=done, total=total, description=name),
        )  # fmt: skip
    for what, path in files.items():
        note(f"{what}: {path}")
    if not json:
        _show(line)
    print_json(line)


def _name(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".jsonl")


def _some(tokenizer: Any, path: Path, count: int, longest: int) -> list[tuple[int, ...]]:
    """Prompts that fit, drawn evenly from the file. Raises BadInput when none does."""
    good = [line.text for line in islice(read_prompts(path), 20000) if isinstance(line, Prompt)]
    encoded = (encode(tokenizer, text) for text in good[:: max(1, len(good) // (2 * count))])
    found = list(dict.fromkeys(tokens for tokens in encoded if len(tokens) <= longest))[:count]
    if not found:
        raise BadInput(reason=f"{path} has no prompt of {longest} tokens or fewer; give another --prompts.")
    return found


def _show(line: dict[str, Any]) -> None:
    names = list(line["sets"])
    for what, digits in (("accept_length", 2), ("tokens_per_s", 0)):
        methods = next(iter(line["sets"].values()))
        rows = [
            {"method": method, "all": line["overall"][what][method]}
            | {name: line["sets"][name][method][what] for name in names}
            for method in methods
        ]
        columns = [
            Column("method", "method"), *(Column(n, n, f"{{:.{digits}f}}".format, True) for n in [*names, "all"]),
        ]  # fmt: skip
        print_table(rows, columns, title=what.replace("_", " "))
    if line["differing"]:
        note(f"{line['differing']} texts are not the target's own.")
