"""`python -m benchmarks gamma`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from osd.bench.harness.options import DraftOption, JsonOption, TargetOption
from osd.bench.harness.prompts import PromptFiles
from osd.bench.harness.watch import watching
from osd.cli.demo import new_folder
from storage.settings import load_settings

GAMMAS = "1,2,3,4,5,6,7,8,12,16,20,24"
"""GammaTune's own list (section 5)."""


def gamma(
    target: TargetOption = None,
    draft: DraftOption = None,
    prompts: PromptFiles = None,
    controllers: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME,…", show_default="all", help="Controllers. all: every one that this pair can be served with."
        ),
    ] = None,
    initial_gammas: Annotated[
        list[str] | None,
        typer.Option(
            metavar="N,…",
            show_default=GAMMAS,
            help="Fixed gammas everywhere, and every controller's initial gamma in the main setting.",
        ),
    ] = None,
    temperatures: Annotated[
        list[str] | None, typer.Option(metavar="T,…", show_default="0,1", help="The first one is the main setting's.")
    ] = None,
    batch_sizes: Annotated[
        list[str] | None, typer.Option(metavar="N,…", show_default="1,8", help="The first one is the main setting's.")
    ] = None,
    count: Annotated[
        int, typer.Option(help="Prompts of a file in a turn; at least as many as the batch has rows.", min=1)
    ] = 2,
    max_tokens: Annotated[int, typer.Option(help="Tokens to generate a prompt.", min=2)] = 48,
    turns: Annotated[
        int, typer.Option(help="Turns of the main setting; other settings and initial gammas take half as many.", min=1)
    ] = 4,
    mix: Annotated[
        int, typer.Option(help="Add a stream over all files that changes file after so many requests.", min=0)
    ] = 0,
    random_draft: Annotated[
        bool, typer.Option("--random-draft", help="Also against the target alone with a random draft, and at batch 32.")
    ] = False,
    simulate: Annotated[
        Path | None, typer.Option(help="Replay a recording instead of decoding; needs --costs.", metavar="FILE")
    ] = None,
    costs: Annotated[
        str | None,
        typer.Option(help="Costs for --simulate: costs.json of a run, or a profile by name.", metavar="COSTS"),
    ] = None,
    seed: Annotated[int, typer.Option(help="Which prompts of a file are drawn.", metavar="N")] = 0,
    threads: Annotated[int | None, typer.Option(help="Torch threads, for every contender alike.", min=1)] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the run; one that was stopped goes on. Default: out/bench-gamma-…", metavar="DIR"),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Every gamma controller against fixed gammas, the target alone, transformers' assisted modes and the oracle.

    All decode the same prompts by turns, and each has an engine's cost model of its own. Leaves figures, a picture,
    recorded rounds and costs in a folder. Ctrl-C stops it; the same command with --out goes on. With --simulate it
    replays recorded rounds under any costs, without a model.

    Example: `python -m benchmarks gamma --target ./target --draft ./draft --prompts sql.jsonl --mix 20`
    """
    from benchmarks.gamma.bench import measure, simulate_gamma
    from benchmarks.gamma.plan import asked_plan

    settings, folder = load_settings(), out or new_folder("bench-gamma")
    settings = settings if threads is None else settings.changed(serve={"threads": threads})
    plan = asked_plan(
        settings, controllers or ["all"], initial_gammas or [GAMMAS], temperatures or ["0,1"], batch_sizes or ["1,8"],
        count=count, max_tokens=max_tokens, turns=turns, mix=mix, random_draft=random_draft,
    )  # fmt: skip
    insist = "all" not in (controllers or ["all"])
    with watching(folder) as watch:
        if simulate:
            result = simulate_gamma(settings, plan, simulate, costs, folder, watch, insist=insist)
        else:
            result = measure(settings, plan, (target, draft), prompts, seed, folder, watch, insist=insist)
    raise typer.Exit(result.show(as_json=json))
