"""`osd bench`: measurements on a pair and prompts of yours, or on those that ship with osd."""

from __future__ import annotations

import typer

from osd.cli.bench_decode import decode
from osd.cli.bench_gamma import gamma
from osd.cli.bench_online import online

app = typer.Typer(no_args_is_help=True, help="Measure decoding, learning while serving, and gamma controllers.")
app.command()(decode)
app.command()(online)
app.command()(gamma)
