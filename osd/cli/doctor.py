"""`osd doctor`: what is installed and reachable, what is missing, and how to mend it."""

from __future__ import annotations

from dataclasses import asdict

import typer
from rich.console import Console

from osd.cli.checks import examine
from osd.cli.context import surroundings
from osd.cli.finding import BROKEN, OK, WARNING
from osd.cli.options import DrafterOption, DraftOption, JsonOption, TargetOption
from osd.cli.out import Column, print_json, print_table

MARKS = {OK: "✓", WARNING: "!", BROKEN: "✗"}
COLUMNS = (Column("state", "", MARKS.__getitem__), Column("part", "part", whole=True), Column("found", "found"))


def doctor(
    ctx: typer.Context,
    target: TargetOption = None,
    draft: DraftOption = None,
    drafter: DrafterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check installation, device, disk, database, storage of samples and weights, broker, trainers, ports, and pair.

    Stored data is left as it is. Ends with status 1 when something is broken.

    Example: `osd doctor --target ./my-model --draft ./my-draft`
    """
    here = surroundings(ctx)
    pair = {name: value for name, value in (("target", target), ("draft", draft)) if value is not None}
    here.changes = {"serve": pair, "drafters": {} if drafter is None else {"kind": drafter}}
    with Console(stderr=True).status("Looking …"):
        findings = list(examine(here))
    rows = [asdict(finding) for finding in findings]
    if as_json:
        print_json(rows)
    else:
        print_table([with_mend(row) for row in rows], COLUMNS)
    if any(finding.state == BROKEN for finding in findings):
        raise typer.Exit(1)


def with_mend(row: dict[str, str]) -> dict[str, str]:
    """Return the row with the remedy below what was found."""
    return {**row, "found": f"{row['found']}\n→ {row['mend']}"} if row["mend"] else row
