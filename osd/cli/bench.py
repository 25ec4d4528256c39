"""`osd bench`: measurements on a pair and prompts of yours, or on those that ship with osd."""

from __future__ import annotations

import typer

from osd.cli.bench_decode import decode
from osd.cli.bench_online import online
from osd.cli.bench_serve import serve

app = typer.Typer(no_args_is_help=True, help="Measure decoding, learning while serving, and a server under load.")
for _command in (decode, online, serve):
    app.command()(_command)
