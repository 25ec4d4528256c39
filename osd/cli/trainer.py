"""`osd trainer`: becomes the training process; and what lives of such processes, whatever machine they are on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from osd.cli.command import CommandGroup, with_options
from osd.cli.context import CommandContext, surroundings
from osd.cli.options import Name
from osd.cli.out import Format, Output, columns, note, when

app = CommandGroup(
    "Train drafts; list, pause and cancel what trains.", invoke_without_command=True, no_args_is_help=False
)
NameArgument = Annotated[
    str | None,
    typer.Argument(metavar="TRAINER"),
    "A trainer, as `osd trainer list` shows it, or how it begins. Default: all.",
]
COLUMNS = columns(
    {"doing": Format(lambda doing: told(doing))},
    id="trainer", state="state", doing="does", started_at="since", age="heartbeat",
)  # fmt: skip


@dataclass(frozen=True)
class TrainerOptions:
    """What it trains, and how long."""

    once: bool = False
    """Do what is due now, then leave."""
    draft: Name | None = None
    """Train this draft only. Default: every draft."""


def train(ctx: typer.Context, options: TrainerOptions) -> None:
    """Train drafts from the replay store until stopped.

    The trainer takes what servers have recorded, distils the draft, and publishes the result if the gate finds it
    better. It needs no model of the target. Ctrl-C ends it after the step at hand.

    Example: `osd trainer` in one terminal, `osd generate --prompts questions.jsonl` in another.
    """
    if ctx.invoked_subcommand is not None:
        return
    here = surroundings(ctx)
    here.settings  # noqa: B018  (a bad setting is reported before a process starts)
    command = trainer_command("once" if options.once else "worker", config=here.config)
    command += ["--draft", options.draft] if options.draft else []
    become(command)


app.callback()(with_options(train))


@app.command("list")
def list_trainers(here: CommandContext, output: Output) -> None:
    """List the training processes, on whatever machine: what each does, and since when.

    One that was not heard of for `fleet.gone_seconds` is gone; it is listed for another hour.
    """
    from storage import records

    with here.store() as store:
        found = store.trainers.list()
    now = records.now()
    rows = [{**asdict(one), "state": one.state.value, "age": max(0.0, now - one.heartbeat_at)} for one in found]
    output.rows(rows, COLUMNS, empty="No trainer runs on this store; `osd trainer` starts one.")


@app.command()
def pause(here: CommandContext, trainer: NameArgument = None) -> None:
    """Let a trainer wait, or all: no run begins, and one under way waits and keeps its lease.

    It hears of it within `fleet.heartbeat_seconds`. To leave a draft as it is, whoever trains, use `osd drafts freeze`.
    """
    with here.store() as store:
        for name in names(store.trainers.list(), trainer):
            note(f"{store.trainers.pause(name).id} is to wait; `osd trainer resume` lets it go on.")


@app.command()
def resume(here: CommandContext, trainer: NameArgument = None) -> None:
    """Let a paused trainer go on, or all."""
    with here.store() as store:
        for name in names(store.trainers.list(), trainer):
            note(f"{store.trainers.pause(name, undo=True).id} is to go on.")


@app.command()
def cancel(here: CommandContext, trainer: NameArgument = None) -> None:
    """Give up the run under way. What it had claimed is trained on again only as replay.

    The next run begins as usual, with newer requests; `osd trainer pause` keeps it from that.
    """
    with here.store() as store:
        for name in names(store.trainers.list(), trainer):
            note(f"{store.trainers.cancel(name).id} is to give up its run.")


def names(found: list[Any], given: str | None) -> list[str]:
    """Return the trainers that are meant. Raises UnknownTrainer where none lives."""
    from storage.errors import UnknownTrainer

    living = [one.id for one in found if one.state.value != "gone"]
    if given is None and not living:
        raise UnknownTrainer(trainer="(any)", known="none")
    return [given] if given is not None else living


def told(doing: Mapping[str, Any]) -> str:
    """Format what a trainer does."""
    if "draft" not in doing:
        return str(doing.get("note", "nothing is due"))
    loss = f", loss {doing['loss']:.3f}" if doing.get("loss") else ""
    step = f", step {doing['step']} of {doing['steps']}{loss}" if "step" in doing else ""
    return f"{doing['draft']}{step}, since {when(doing['since'])}"


def trainer_command(action: str, *, config: Path | None = None) -> list[str]:
    """Return the command line of a trainer process; ``-P`` keeps the working directory out of its imports."""
    return [sys.executable, "-P", "-m", "trainer", action, *(["--config", str(config)] if config else [])]


def ask_trainer(here: CommandContext, action: str, *words: str, **pipes: Any) -> subprocess.CompletedProcess[str]:
    """Run `python -m trainer routes`, which prints JSON; what it says beside goes where ``pipes`` say."""
    config = ["--config", str(here.config)] if here.config else []
    command = [*trainer_command("routes"), action, *words, *config]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, **pipes)


def become(command: list[str]) -> None:
    """Replace this process, so that signals and the exit status are the worker's own, with nothing to forward."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(command[0], command)
