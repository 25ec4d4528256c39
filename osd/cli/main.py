"""The root of the command: its subcommands, and how an error becomes a line and an exit status.

Commands import torch when they run and not before, so that `osd stats` and every --help start at once.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from osd.bench.harness.report import INTERRUPTED
from osd.cli import (  # noqa: F401  (some add their commands to drafts.app, replay.app and router.app)
    attach,
    audit,
    bench,
    config,
    corpus,
    db,
    demo,
    doctor,
    drafts,
    drafts_decide,
    engines,
    generate,
    keys,
    metrics,
    replay,
    replay_keep,
    router,
    router_ask,
    router_discover,
    router_files,
    router_show,
    serve,
    servers,
    stats,
    trainer,
)
from osd.cli.context import CommandContext
from osd.cli.out import note
from storage.distribution import osd_version
from storage.errors import OsdError

SERVE, LOOK, KEEP, MEASURE = "Decode and learn", "Look", "Keep", "Show and measure"


class OsdGroup(TyperGroup):
    """The command group: turns an error into one line on stderr and an exit status."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except OsdError as error:
            note(f"osd: {error}")
            raise typer.Exit(error.exit_code) from error
        except KeyboardInterrupt:
            note("Stopped.")
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    cls=OsdGroup, no_args_is_help=True, rich_markup_mode="markdown", pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]}, add_completion=True,
)  # fmt: skip


def show_version(asked: bool) -> None:
    """Print the version and leave."""
    if asked:
        typer.echo(f"osd {osd_version()}")
        raise typer.Exit


@app.callback()
def root(
    ctx: typer.Context,
    config: Annotated[
        Path | None, typer.Option(help="Configuration file. Default: $OSD_CONFIG, then osd.toml here.", metavar="FILE")
    ] = None,
    _: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Speculative decoding whose drafts keep learning from the traffic that they serve.

    Start with `osd demo`, which needs no settings. `osd doctor` says what is missing.
    """
    ctx.obj = CommandContext(config)


app.command("serve", rich_help_panel=SERVE)(serve.serve)
app.command("generate", rich_help_panel=SERVE)(generate.generate)
app.add_typer(trainer.app, name="trainer", rich_help_panel=SERVE)
app.command("worker", hidden=True)(trainer.worker)
app.command("attach", rich_help_panel=SERVE)(attach.attach)
app.command("use", rich_help_panel=SERVE)(config.use)
app.add_typer(engines.app, name="engines", rich_help_panel=SERVE)
app.add_typer(servers.app, name="servers", rich_help_panel=LOOK)
app.add_typer(servers.old, name="workers", hidden=True)
app.add_typer(stats.app, name="stats", rich_help_panel=LOOK)
app.command("audit", rich_help_panel=LOOK)(audit.audit)
app.command("config", rich_help_panel=LOOK)(config.config)
app.command("metrics", rich_help_panel=LOOK)(metrics.metrics)
app.command("doctor", rich_help_panel=LOOK)(doctor.doctor)
app.add_typer(drafts.app, name="drafts", rich_help_panel=KEEP)
app.add_typer(router.app, name="router", rich_help_panel=KEEP)
app.add_typer(replay.app, name="replay", rich_help_panel=KEEP)
app.add_typer(corpus.app, name="corpus", rich_help_panel=KEEP)
app.add_typer(keys.app, name="keys", rich_help_panel=KEEP)
app.add_typer(db.app, name="db", rich_help_panel=KEEP)
app.command("demo", rich_help_panel=MEASURE)(demo.demo)
app.add_typer(bench.app, name="bench", rich_help_panel=MEASURE)


def main() -> None:
    """Run the console script."""
    signal.signal(signal.SIGTERM, _terminated)
    app(prog_name="osd")


def _terminated(number: int, frame: FrameType | None) -> None:
    """Turn SIGTERM into an exit, so that ``finally`` clauses run."""
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
