"""`osd doctor`: what is installed and reachable, what is missing, and how to mend it."""

from __future__ import annotations

from dataclasses import asdict

import typer
from rich.console import Console

from osd.cli.checks import examine
from osd.cli.context import CommandContext
from osd.cli.finding import BROKEN, OK, WARNING
from osd.cli.options import PairOptions
from osd.cli.out import Column, Output

MARKS = {OK: "✓", WARNING: "!", BROKEN: "✗"}
COLUMNS = (Column("state", "", MARKS.__getitem__), Column("part", "part", whole=True), Column("found", "found"))


def doctor(here: CommandContext, pair: PairOptions, output: Output) -> None:
    """Check installation, device, disk, database, storage of samples and weights, broker, trainers, ports, and pair.

    Stored data is left as it is. Ends with status 1 when something is broken.

    Example: `osd doctor --target ./my-model --draft ./my-draft`
    """
    here.say(serve={"target": pair.target, "draft": pair.draft}, drafters={"kind": pair.drafter})
    with Console(stderr=True).status("Looking …"):
        findings = list(examine(here))
    rows = [asdict(finding) for finding in findings]
    output.rows(rows if output.as_json else [with_mend(row) for row in rows], COLUMNS)
    if any(finding.state == BROKEN for finding in findings):
        raise typer.Exit(1)


def with_mend(row: dict[str, str]) -> dict[str, str]:
    """Return the row with the remedy below what was found."""
    return {**row, "found": f"{row['found']}\n→ {row['mend']}"} if row["mend"] else row
