"""The root of the command: its subcommands, and how an error becomes a line and an exit status.

A subcommand's module is imported when it is named, and torch when a command needs it, so that `osd --help` and
`osd stats` start at once.
"""

from __future__ import annotations

import signal
import sys
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from osd.cli.command import INTERRUPTED, with_options
from osd.cli.context import CommandContext
from osd.kernels.host import without_collecting
from storage.errors import OsdError

MARKUP: Any = "markdown"
PANELS = {
    "Decode and learn": "serve generate trainer attach use engines",
    "Look": "servers stats audit config metrics doctor",
    "Keep": "drafts targets router replay corpus keys db",
    "Show and measure": "demo bench",
}
"""By the heading in the help, the subcommands."""
PLACES = {
    "use": "config",
    "engines": "engines engines_teacher",
    "stats": "stats stats_gain stats_versions",
    "metrics": "servers",
    "drafts": "drafts drafts_decide drafts_examine",
    "router": "router router_show router_discover router_files",
    "replay": "replay replay_keep replay_import",
}
"""The modules of osd.cli that a subcommand is in, where that is not the one of its name alone."""
HELP = {
    "serve": "Serve the pair, or replicas that serve it, over HTTP as OpenAI's API, until SIGTERM or Ctrl-C.",
    "generate": "Complete a prompt, or every prompt of a file.",
    "trainer": "Train drafts; list, pause and cancel what trains.",
    "attach": "Take what attached engines answer into the store, and publish newer drafts to them, until Ctrl-C.",
    "use": "Write the pair that is served into osd.toml here, so that every command in this folder means it and "
    "its store.",
    "engines": "Attach vLLM servers, so that their drafts learn from what they serve. SGLang: experimental.",
    "servers": "List the serving processes of a store, and take one out of service.",
    "stats": "Ask how well drafts guess, why, and what it brings.",
    "audit": "Show who changed what and when, from where, and what was before and after; the newest first.",
    "config": "Show which settings are in force, and where each comes from: a file, a variable of the "
    "environment, the default.",
    "metrics": "Serve the store's numbers at /metrics for Prometheus, until it is stopped.",
    "doctor": "Check installation, device, disk, database, storage of samples and weights, broker, trainers, "
    "ports, and pair.",
    "drafts": "List, inspect, publish and take back versions of a draft.",
    "targets": "List the targets that served, and say which succeeds which.",
    "router": "See and steer which draft serves which traffic.",
    "replay": "See, take out and delete what is kept for learning.",
    "corpus": "Build, look at and export the texts that n-gram drafts know.",
    "keys": "Make, list and revoke API keys of `osd serve`.",
    "db": "Look after the database's schema; back the whole store up, and restore it.",
    "demo": "Watch heads of random weights learn from a real model's answers, and what they gain.",
    "bench": "Measure decoding, learning while serving, and a server under load.",
}
"""The first sentence of each subcommand's own help."""


class LazyCommand(TyperCommand):
    """What the help says of a subcommand whose module is not imported yet."""

    def __init__(self, name: str, panel: str) -> None:
        super().__init__(name, help=HELP[name], rich_help_panel=panel, rich_markup_mode=MARKUP)

    def load(self) -> Any:
        """Return the subcommand itself: its module's function of the same name, or the group that is the module's."""
        name = str(self.name)
        module, *_ = [import_module(f"osd.cli.{place}") for place in PLACES.get(name, name).split()]
        found, around = getattr(module, name, None), typer.Typer(rich_markup_mode=MARKUP)
        if found is None:
            around.add_typer(module.app, name=name)
        else:
            around.command(name)(with_options(found))
        return typer.main.get_group(around).commands[name]


def loaded(command: Any) -> Any:
    """Return the command, imported if it was not yet."""
    return command.load() if isinstance(command, LazyCommand) else command


class OsdGroup(TyperGroup):
    """The root: imports the subcommand that is named, and turns an error into one line on stderr and an exit status."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for panel, names in PANELS.items():
            self.commands.update({name: LazyCommand(name, panel) for name in names.split()})

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Find the subcommand that the arguments begin with."""
        name, command, rest = super().resolve_command(ctx, args)
        with without_collecting():
            return name, loaded(command), rest

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except OsdError as error:
            typer.echo(f"osd: {error}", err=True)
            raise typer.Exit(error.exit_code) from error
        except KeyboardInterrupt:
            typer.echo("Stopped.", err=True)
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    cls=OsdGroup, no_args_is_help=True, rich_markup_mode=MARKUP, pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]}, add_completion=True,
)  # fmt: skip


def show_version(asked: bool) -> None:
    """Print the version and leave."""
    if asked:
        from storage.distribution import osd_version

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


def main() -> None:
    """Run the console script."""
    signal.signal(signal.SIGTERM, _terminated)
    app(prog_name="osd")


def _terminated(number: int, frame: FrameType | None) -> None:
    """Turn SIGTERM into an exit, so that ``finally`` clauses run."""
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
