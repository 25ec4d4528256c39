"""Options that commands of a pair share, whether they are run as `osd` or as `python -m osd.bench`."""

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
