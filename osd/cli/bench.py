"""`osd bench`: measurements on a pair and prompts of yours, or on those that ship with osd."""

from __future__ import annotations

import typer

from osd.cli.bench_decode import decode
from osd.cli.bench_distil import distil
from osd.cli.bench_drafts import drafts
from osd.cli.bench_gamma import gamma
from osd.cli.bench_gpu import gpu
from osd.cli.bench_online import online
from osd.cli.bench_papers import papers
from osd.cli.bench_routes import routes
from osd.cli.bench_serve import serve
from osd.cli.bench_trees import trees

app = typer.Typer(
    no_args_is_help=True, help="Measure decoding, learning while serving, gamma controllers, routes; what papers claim."
)
for _command in (decode, online, distil, gamma, gpu, routes, drafts, serve, trees, papers):
    app.command()(_command)
