"""`osd worker`: replaces itself by the training process."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from osd.cli.context import surroundings


def worker(
    ctx: typer.Context,
    once: Annotated[bool, typer.Option("--once", help="Do what is due now, then leave.")] = False,
    draft: Annotated[
        str | None, typer.Option(help="Train this draft only. Default: every draft.", metavar="NAME")
    ] = None,
) -> None:
    """Train drafts from the replay store until stopped.

    The worker takes what servers have recorded, distils the draft, and publishes the result if the gate finds it
    better. It needs no model of the target. Ctrl-C ends it after the step at hand.

    Example: `osd worker` in one terminal, `osd generate --prompts questions.jsonl` in another.
    """
    here = surroundings(ctx)
    here.settings  # noqa: B018  (a bad setting is reported before a process starts)
    command = trainer_command("worker", config=here.config)
    command += ["--once"] if once else []
    command += ["--draft", draft] if draft else []
    become(command)


def trainer_command(action: str, *, config: Path | None = None) -> list[str]:
    """Return the command line of a trainer process; ``-P`` keeps the working directory out of its imports."""
    return [sys.executable, "-P", "-m", "trainer", action, *(["--config", str(config)] if config else [])]


def become(command: list[str]) -> None:
    """Replace this process, so that signals and the exit status are the worker's own, with nothing to forward."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(command[0], command)
