"""The demo's assets, a pair of small models and prompts of four domains, and its options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

TARGET = Path(__file__).parent / "pair" / "target"
DRAFT = Path(__file__).parent / "pair" / "draft"
Count = Annotated[int, typer.Option(metavar="N", min=1)]


@dataclass(frozen=True)
class DemoOptions:
    """What is served, how, and what is left of it."""

    minutes: Annotated[int, typer.Option(metavar="N", min=2)] = 11
    """How long it takes in all. From 24 on the questions change to SQL and back."""
    heads: Literal["medusa", "eagle"] = "medusa"
    """What learns."""
    small: bool = False
    """The small pair that ships with osd, and the prompts of four domains, in place of a real model."""
    requests: Count = 250
    """Prompts of each domain (--small)."""
    domain: Annotated[list[str], typer.Option(metavar="NAME")] | None = None
    """sql, arithmetic, python or finnish (--small); may be given again. Default: all four."""
    max_tokens: Count | None = None
    """Tokens of an answer at most. Default: 48; 64 with --small."""
    batch: Count = 2
    """Requests decoded together (--small)."""
    arrival: Annotated[str, typer.Option(metavar="free|paced|lockstep")] = "paced"
    """(--small) free: as fast as it goes. paced: not far ahead of the trainer. lockstep: wait for each update."""
    drafter: Literal["blended", "causal"] = "blended"
    """(--small) blended: the draft and a table of n-grams, in one chain. causal: the draft alone."""
    seed: Annotated[int, typer.Option(metavar="N")] = 0
    """Which prompts are drawn."""
    out: Annotated[Path, typer.Option(metavar="DIR")] | None = None
    """New folder for report, picture and summary. Default: out/demo-…"""
    keep: bool = False
    """Keep the run's store there too: samples, versions, database."""
    serve: bool = False
    """Show the dashboard meanwhile; with --small, on a terminal, until Ctrl-C."""
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535)] | None = None
    """The dashboard's port; 0 takes a free one. Default: server.admin_port."""
