"""Options that several commands share, and the parsing of their values."""

from __future__ import annotations

import re
import sys
import time
from datetime import datetime
from typing import Annotated

import typer

from osd.bench.harness.options import DraftOption as DraftOption
from osd.bench.harness.options import JsonOption as JsonOption
from osd.bench.harness.options import TargetOption as TargetOption
from storage.errors import NeedsYes

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DrafterOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Who drafts. With trigram or lookup a target alone is enough. Default: drafters.kind.",
    ),
]

DraftNameOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="What the draft is called in the store; the default route leads to it then. Default: serve.draft_name.",
    ),
]

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def moment(text: str) -> float:
    """Parse ``90s``, ``15m``, ``2h``, ``7d``, ``2w`` ago, or an ISO date or time (local time), to Unix seconds."""
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text.strip()):
        return time.time() - float(match[1]) * _UNITS[match[2]]
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is neither an age (15m, 2h, 7d) nor a date (2026-11-21, 2026-11-21T08:00)"
        ) from None


def span(text: str) -> float:
    """Parse ``90s``, ``15m``, ``2h``, ``7d``, ``2w`` to seconds."""
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text.strip()):
        return float(match[1]) * _UNITS[match[2]]
    raise typer.BadParameter(f"{text!r} is no length of time (15m, 2h, 7d)")


def confirm(question: str, yes: bool) -> None:
    """Ask before something that cannot be undone; ends the command with status 1 on no.

    Raises NeedsYes where nobody can answer: no terminal, and nothing piped in.
    """
    if yes:
        return
    if sys.stdin.isatty():
        typer.confirm(question, abort=True, err=True)
        return
    typer.echo(f"{question} [y/N]", err=True)
    answer = sys.stdin.readline()
    if not answer:
        raise NeedsYes(question=question)
    if answer.strip().lower() not in ("y", "yes"):
        raise typer.Abort
