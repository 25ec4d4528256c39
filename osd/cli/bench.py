"""`osd bench`: measurements on a pair and prompts of yours, or on those that ship with osd."""

from __future__ import annotations

import typer

from osd.cli.bench_decode import decode
from osd.cli.bench_drafts import drafts
from osd.cli.bench_gamma import gamma
from osd.cli.bench_online import online
from osd.cli.bench_replay import replay
from osd.cli.bench_router import router
from osd.cli.bench_routes import routes
from osd.cli.bench_serve import serve
from osd.cli.bench_servers import servers
from osd.cli.bench_soak import soak
from osd.cli.bench_stats import stats
from osd.cli.bench_topk import topk
from osd.cli.bench_trees import trees
from osd.cli.bench_trigram import trigram

app = typer.Typer(no_args_is_help=True, help="Measure decoding, learning while serving, gamma controllers, and routes.")
app.command()(decode)
app.command()(online)
app.command()(gamma)
app.command()(routes)
app.command()(drafts)
app.command()(router)
app.command()(replay)
app.command()(serve)
app.command()(servers)
app.command()(soak)
app.command()(topk)
app.command()(stats)
app.command()(trigram)
app.command()(trees)
