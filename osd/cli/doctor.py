"""`osd doctor`: what is installed and reachable, what is missing, and how to mend it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict

import typer
from rich.console import Console

from osd.cli import checks, serving_checks
from osd.cli.checks import BROKEN, OK, WARNING, CheckResult
from osd.cli.context import CommandContext
from osd.cli.options import PairOptions
from osd.cli.out import Format, Output, columns

MARKS = {OK: "✓", WARNING: "!", BROKEN: "✗"}
COLUMNS = columns({"state": Format(MARKS.__getitem__)}, state="", part="part", found="found")
Check = Callable[[CommandContext], Iterator[CheckResult]]
BEFORE_BROKER: tuple[Check, ...] = (
    checks.device, checks.disk, checks.database, checks.places, checks.weights
)  # fmt: skip
AFTER_BROKER: tuple[Check, ...] = (checks.trainers, serving_checks.choices, serving_checks.ports, serving_checks.pair)


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


def examine(here: CommandContext) -> Iterator[CheckResult]:
    """Run every check; where the settings cannot be read, those that need none. The broker is asked meanwhile."""
    yield from checks.python(here)
    yield from checks.packages(here)
    (read,) = checks.settings(here)
    yield read
    if read.state == BROKEN:
        return
    asked = checks.ping(here)
    try:
        for check in BEFORE_BROKER:
            yield from check(here)
        rest = [finding for check in AFTER_BROKER for finding in check(here)]
        yield checks.broker(asked)
        yield from rest
    finally:
        asked.kill()
        asked.communicate()


def with_mend(row: dict[str, str]) -> dict[str, str]:
    """Return the row with the remedy below what was found."""
    return {**row, "found": f"{row['found']}\n→ {row['mend']}"} if row["mend"] else row
