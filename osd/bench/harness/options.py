"""Options that commands of a pair share, whether they are run as `osd` or as `python -m osd.bench`; and those of the
benches of servers."""

from __future__ import annotations

from typing import Annotated

import typer

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
SecondsOption = Annotated[float, typer.Option(help="Seconds of each server at each level.", min=0.1)]
MaxTokensOption = Annotated[int, typer.Option(help="Tokens of an answer at most; half so many at least.", min=2)]
ClientsOption = Annotated[list[str] | None, typer.Option(help="Clients at a time.", metavar="N,…")]
