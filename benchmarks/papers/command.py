"""`python -m benchmarks papers`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from osd.bench.harness.options import DraftOption, JsonOption, TargetOption
from osd.bench.harness.prompts import PromptFiles, listed
from osd.bench.harness.watch import watching
from storage.settings import load_settings


def papers(
    paper: Annotated[
        list[str] | None,
        typer.Option(help="Papers.", metavar="NAME,…", show_default="all: osd,on_the_fly,specdecpp,gammatune,adaptix"),
    ] = None,
    table: Annotated[
        list[str] | None,
        typer.Option(
            help='Tables, figures, theorems by their names there: "Table 4".', metavar="ID,…", show_default="all"
        ),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full/--small", help="small shows that all of it works; full is for verdicts.")
    ] = False,
    target: TargetOption = None,
    draft: DraftOption = None,
    prompts: PromptFiles = None,
    seed: Annotated[int, typer.Option(help="Which prompts are drawn, and everything else that is.")] = 0,
    out: Annotated[
        Path, typer.Option(help="Folder of the page; what is there already is not run again.", metavar="DIR")
    ] = Path("out/papers"),
    beside: Annotated[
        list[str] | None,
        typer.Option(help="Folders of other runs (pair, prompts, seed), told beside.", metavar="DIR,…"),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Every table and figure of five papers: what is claimed, what comes of it here, confirmed, refuted or open.

    Leaves a page (results.md, index.html) with everything that the folder holds. Ctrl-C stops it; the same command goes
    on. What is run, and by which rule each claim is judged, stands in the catalogue, benchmarks/papers/*.toml.

    Example: `python -m benchmarks papers --paper gammatune --table "Table 2" --small --out out/papers --json`
    """  # fmt: skip
    from benchmarks.papers.bench import PapersPlan, bench_papers

    plan = PapersPlan(
        listed(paper), listed(table), full, target, draft, listed(prompts), seed,
        [Path(name) for name in listed(beside)],
    )  # fmt: skip
    with watching(out) as watch:
        result = bench_papers(load_settings(), watch, out, plan)
    raise typer.Exit(result.show(as_json=json))
