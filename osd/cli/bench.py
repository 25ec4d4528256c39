"""`osd bench`: measurements on a pair and prompts of yours, or on those that ship with osd."""

from __future__ import annotations

import typer

from osd.cli.bench_decode import decode
from osd.cli.bench_online import online

app = typer.Typer(no_args_is_help=True, help="Measure decoding, and learning while serving.")
app.command()(decode)
app.command()(online)
