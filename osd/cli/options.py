"""Options that several commands share, and the parsing of their values."""

from __future__ import annotations

import re
import sys
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from storage.errors import NeedsYes

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def moment(text: str) -> float:
    """Parse ``90s``, ``15m``, ``2h``, ``7d``, ``2w`` ago, or an ISO date or time (local time), to Unix seconds."""
    if (ago := _seconds(text)) is not None:
        return time.time() - ago
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is neither an age (15m, 2h, 7d) nor a date (2026-11-21, 2026-11-21T08:00)"
        ) from None


def span(text: str) -> float:
    """Parse ``90s``, ``15m``, ``2h``, ``7d``, ``2w`` to seconds."""
    if (seconds := _seconds(text)) is None:
        raise typer.BadParameter(f"{text!r} is no length of time (15m, 2h, 7d)")
    return seconds


def _seconds(text: str) -> float | None:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text.strip())
    return float(match[1]) * _UNITS[match[2]] if match else None


Name = Annotated[str, typer.Option(metavar="NAME")]
Id = Annotated[str, typer.Option(metavar="ID")]
Folder = Annotated[Path, typer.Option(metavar="DIR")]
Model = Annotated[str, typer.Option(metavar="MODEL")]
Count = Annotated[int, typer.Option(metavar="N", min=1)]
Newest = Annotated[int, typer.Option(min=1, help="The newest so many.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")]
Port = Annotated[int, typer.Option(metavar="N", min=0, max=65535)]
DraftName = Annotated[
    Name, "What the draft is called in the store; the default route leads to it then. Default: serve.draft_name."
]
Moment = Annotated[float, typer.Option(parser=moment, metavar="WHEN")]


@dataclass(frozen=True)
class Confirmation:
    """The user's consent to what cannot be undone."""

    yes: Annotated[bool, typer.Option("--yes", "-y")] = False
    """Do not ask."""

    def ask(self, question: str) -> None:
        """Ask, unless --yes answers; ends the command with status 1 on no.

        Raises NeedsYes where nobody can answer: no terminal, and nothing piped in.
        """
        if self.yes:
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


@dataclass(frozen=True)
class PairOptions:
    """The pair, and who drafts."""

    target: Model | None = None
    """Target: a Hugging Face folder or hub name. Default: serve.target, else the shipped one."""
    draft: Model | None = None
    """Draft: a Hugging Face folder or hub name. Default: serve.draft, else the shipped one."""
    drafter: Name | None = None
    """Who drafts. With trigram or lookup a target alone is enough. Default: drafters.kind."""
