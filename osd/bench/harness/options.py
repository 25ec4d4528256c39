"""Options that commands of a pair share, whether they are run as `osd` or as `python -m benchmarks`; and those of the
benches of servers."""

from __future__ import annotations

from typing import Annotated

import typer

from storage.sampling import GREEDY, Sampling

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on one line instead of a table.")]
TargetOption = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL", help="Target: a Hugging Face folder or hub name. Default: serve.target, else the shipped one."
    ),
]
DraftOption = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL", help="Draft: a Hugging Face folder or hub name. Default: serve.draft, else the shipped one."
    ),
]
TemperatureOption = Annotated[float, typer.Option(help="Of the answers; 0 is greedy.", min=0.0, max=2.0)]
TopPOption = Annotated[
    float, typer.Option(help="Answers are drawn from the likeliest tokens with this much probability.", max=1.0)
]
ArrivalOption = Annotated[
    str,
    typer.Option(
        help="lockstep: every learn.interval_requests requests, wait until the update over them serves, as in the OSD "
        "paper's Algorithm 1. paced: not far ahead of the trainer. free: as fast as it goes.",
        metavar="lockstep|paced|free",
    ),
]
SecondsOption = Annotated[float, typer.Option(help="Seconds of each server at each level.", min=0.1)]
MaxTokensOption = Annotated[int, typer.Option(help="Tokens of an answer at most; half so many at least.", min=2)]
ClientsOption = Annotated[list[str] | None, typer.Option(help="Clients at a time.", metavar="N,…")]


def body_of(sampling: Sampling) -> dict[str, float]:
    """Return the fields by which a request to a server asks for such answers, as :func:`sampling_of` makes them."""
    if sampling.greedy:
        return {"temperature": 0}
    named = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    return {name: getattr(sampling, name) for name in named}


def sampling_of(temperature: float, top_p: float) -> Sampling:
    """Return how the answers of a bench are sampled, whatever the model's generation_config.json says. Raises
    typer.BadParameter."""
    if not top_p > 0:
        raise typer.BadParameter("it is the probability that is kept: above 0, at most 1", param_hint="--top-p")
    if temperature == 0:
        return GREEDY
    return Sampling(temperature, top_k=0, top_p=top_p, min_p=0.0, repetition_penalty=1.0)
