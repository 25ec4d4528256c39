"""Options that the benches of servers share."""

from __future__ import annotations

from typing import Annotated

import typer

SecondsOption = Annotated[float, typer.Option(help="Seconds of each server at each level.", min=0.1)]
MaxTokensOption = Annotated[int, typer.Option(help="Tokens of an answer at most; half so many at least.", min=2)]
ClientsOption = Annotated[list[str] | None, typer.Option(help="Clients at a time.", metavar="N,…")]
