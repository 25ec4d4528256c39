"""`python -m benchmarks distil`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from osd.bench.harness.options import DraftOption, JsonOption, TargetOption, TopPOption, sampling_of
from osd.bench.harness.prompts import PromptFiles, numbers
from osd.bench.harness.watch import watching
from osd.cli.demo import new_folder
from storage.settings import load_settings


def distil(
    target: TargetOption = None,
    draft: DraftOption = None,
    prompts: PromptFiles = None,
    requests: Annotated[int, typer.Option(help="Prompts of each file to learn from.", metavar="N", min=1)] = 200,
    test_requests: Annotated[int, typer.Option(help="Further ones to test on.", metavar="N", min=2)] = 50,
    positions: Annotated[
        int, typer.Option(help="Positions of a file that a draft learns from at most, once an epoch.", min=1)
    ] = 10_000,
    max_tokens: Annotated[int, typer.Option(help="Tokens of an answer at most.", metavar="N", min=1)] = 64,
    epochs: Annotated[int, typer.Option(help="Passes over them; the paper's are two.", min=1)] = 2,
    temperature: Annotated[
        list[str] | None, typer.Option(help="Of answers and of texts that are drawn; 0 is greedy.", metavar="T,…")
    ] = None,
    top_p: TopPOption = 1.0,
    sampling: Annotated[
        list[str] | None, typer.Option(help="Whose tokens are learned behind.", metavar="TF,SF,MixF")
    ] = None,
    loss: Annotated[
        list[str] | None, typer.Option(help="By which distances.", metavar="forward_kl,reverse_kl,jsd")
    ] = None,
    seed: Annotated[int, typer.Option(help="Which prompts of a file are drawn.", metavar="N")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the run; a stopped one goes on there. Default: out/bench-distil-…", metavar="DIR"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Table 1 of Online Speculative Decoding: what a draft learns from offline, by whose tokens and which distance.

    Original: as it is. FT: fine-tuned on the target's tokens. TF, SF, MixF: distilled behind the target's tokens, the
    draft's own, or tokens drawn from learn.mix · p + (1 − learn.mix) · q, each with forward KL, reverse KL and JSD. α
    is measured on the target's own answers to further prompts, greedy and at temperature 1; errors are over texts.

    Example: `python -m benchmarks distil --prompts sql.jsonl,chat.jsonl.gz --positions 5000 --out out/table1`
    """
    from benchmarks.distil.arms import arms_of
    from benchmarks.distil.bench import DistilPlan
    from benchmarks.distil.table import bench_table
    from osd.server.start import choose_pair

    settings, folder = load_settings(), out or new_folder("bench-distil")
    temperatures = numbers(temperature or ["0", "1"], "--temperature", float, 0.0)
    sampling_of(max(temperatures), top_p)  # refuses a top-p that keeps nothing
    plan = DistilPlan(arms_of(sampling, loss), temperatures, epochs, positions, max_tokens, top_p, folder)
    pair = choose_pair(settings.serve, target, draft).load(settings.serve)
    with watching(folder) as watch:
        result = bench_table(
            pair, settings, plan, watch, prompts=prompts, requests=requests, test_requests=test_requests, seed=seed
        )
    raise typer.Exit(result.show(as_json=as_json))
