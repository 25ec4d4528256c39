"""The plans of `osd bench`: what a user measures with a pair of his own. They load without torch, for the command."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer
from annotated_types import Ge

from osd.bench.harness.plan import Arrival, Count, PairPlan, SampledPlan


@dataclass(frozen=True, kw_only=True)
class DecodePlan(PairPlan):
    """Tokens a second: osd, the target alone, and transformers' plain and assisted generation, side by side.

    Example: `osd bench decode --target ./target --draft ./draft --prompts questions.jsonl --json`
    """

    drafter: str | None = None
    """Who drafts. With trigram or lookup a target alone is enough. Default: drafters.kind."""
    count: Count = 32
    """Prompts of each data set."""
    batch: tuple[Count, ...] = (1, 8)
    """Batch sizes; the first has the assisted modes beside it."""
    max_tokens: Count = 64
    """Tokens to generate a prompt."""
    turns: Count = 5
    """Turns each contender takes."""
    recorded: Annotated[int, Ge(0)] = 300
    """Pairs of turns to tell what recording costs; 0: none."""
    threads: Annotated[int | None, Ge(1)] = None
    """Torch threads, for every contender alike."""


@dataclass(frozen=True, kw_only=True)
class OnlinePlan(SampledPlan, PairPlan):
    """Online learning over shifting traffic, for any pair and any prompts.

    Serves one file after another while a worker process trains the draft, and compares acceptance with the frozen
    draft and with a draft distilled offline for two epochs on the segment's own prompts. A line of a file that cannot
    be used is named by its number; the others go on.

    Example: `osd bench online --target ./target --draft ./draft --prompts sql.jsonl,chat.jsonl.gz --json`
    """

    requests: Count = 400
    """Prompts of each file."""
    max_tokens: Count = 64
    """Tokens of an answer at most."""
    batch: Annotated[int | None, Ge(1)] = None
    """Requests decoded together. Default: serve.max_batch."""
    arrival: Arrival = "lockstep"
    """lockstep: every learn.interval_requests requests, wait until the update over them serves, as in the OSD paper's
    Algorithm 1. paced: not far ahead of the trainer. free: as fast as it goes."""
    drafter: Literal["blended", "causal"] = "blended"
    """blended: the draft and a table of n-grams, in one chain. causal: the draft alone."""
    recipe: tuple[Literal["osd", "paper"], ...] = ("osd",)
    """How the draft learns; several are run one after another. osd: as the settings say. paper: five tokens
    guessed each round, one pass over refused positions, the buffer released, no gate."""
    seed: int = 0
    """Which prompts of a file are drawn."""
    in_order: bool = False
    """Take the first prompts of a file instead of drawing them."""
    offline: bool = True
    """Distil a draft offline on each segment too: the upper bound."""
    out: Path | None = None
    """New folder for report, picture and summary. Default: out/bench-online-…"""
    keep: bool = False
    """Keep the run's store there too: samples, versions, database."""


@dataclass(frozen=True, kw_only=True)
class ServePlan(PairPlan):
    """Load a server with 1 to 64 clients: tokens a second, time to the first token and between tokens, failures.

    No drafts, fixed ones and goodput take turns; the server that is asked for the first and the last gets new versions
    while goodput is measured. Goodput's latencies are shown, and it is compared with the engine alone, with the same
    prompts and rows; ratios are medians of turns, there and back. Clients run on this machine and take a part of it.
    Ctrl-C ends it with the turns that are whole; with `--out` they are kept, and the same command goes on.

    Example: `osd bench serve --concurrency 1,8 --seconds 3 --json`
    """

    concurrency: tuple[Count, ...] = (1, 2, 4, 8, 16, 32, 64)
    """Clients at a time."""
    seconds: Annotated[float, Ge(0.1)] = 15.0
    """Seconds of each server at each level."""
    turns: Count = 6
    """Parts of them, in which the servers take turns."""
    swaps: Annotated[int, Ge(0)] = 20
    """New draft versions while it measures."""
    max_tokens: Annotated[int, Ge(2)] = 160
    """Tokens of an answer at most; half so many at least."""
    trace: tuple[Path, ...] = ()
    """JSONL files with t_s, context_tokens, generated_tokens: arrivals to play."""
    threads: Annotated[int | None, Ge(1)] = None
    """Torch threads of servers and engine. Default: as `osd serve`, a core is left over."""
    out: Path | None = None
    """Folder of the run: the same command goes on there where it stopped."""


@dataclass(frozen=True)
class Examination:
    """The draft that `osd drafts examine` looks at, and on which texts."""

    draft: Annotated[str, typer.Argument(metavar="DRAFT")]
    """A draft's folder, or the name of one in the store, whose current version is taken."""
    prompts: Annotated[list[Path], typer.Option(metavar="FILE")] | None = None
    """JSON lines with a "prompt" each, as you serve them; may be given again. Default: what the store holds."""
    target: Annotated[str, typer.Option(metavar="MODEL")] | None = None
    """A Hugging Face folder or hub name. Default: serve.target."""
    count: Annotated[int, typer.Option(metavar="N", min=1)] = 64
    """Texts of each file, or of the store."""
    max_tokens: Annotated[int, typer.Option(metavar="N", min=2)] = 128
    """Tokens of an answer at most."""
    raw: bool = False
    """Your prompts are served without the target's chat template."""
    out: Annotated[Path, typer.Option(metavar="DIR")] = Path("examined")
    """Folder for the page, the picture and JSON."""
