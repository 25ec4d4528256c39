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
from osd.cli.out import Format, Output, columns, print_json, print_table
from osd.kernels.host import without_collecting

MARKS = {OK: "✓", WARNING: "!", BROKEN: "✗"}
COLUMNS = columns({"state": Format(MARKS.__getitem__)}, state="", part="part", found="found")
Check = Callable[[CommandContext], Iterator[CheckResult]]
BEFORE_BROKER: tuple[Check, ...] = (checks.disk, checks.database, checks.places, checks.weights)
AFTER_BROKER: tuple[Check, ...] = (checks.trainers, checks.drafting, serving_checks.ports)
WITH_TORCH: tuple[Check, ...] = (checks.device, serving_checks.choices, serving_checks.pair)
"""They come last, with what the others found printed: to import PyTorch and load the pair takes seconds."""


def doctor(here: CommandContext, pair: PairOptions, output: Output) -> None:
    """Check installation, device, disk, database, storage of samples and weights, broker, trainers, ports, and pair.

    Stored data is left as it is. Ends with status 1 when something is broken.

    Example: `osd doctor --target ./my-model --draft ./my-draft`
    """
    here.say(serve={"target": pair.target, "draft": pair.draft}, drafters={"kind": pair.drafter})
    findings: list[CheckResult] = []
    for stage in (without_torch, with_torch):
        with Console(stderr=True).status("Looking …"), without_collecting():
            found = list(stage(here))
        if found and not output.as_json:
            print_table(map(with_mend, found), COLUMNS)
        findings += found
    if output.as_json:
        print_json(list(map(asdict, findings)))
    if any(finding.state == BROKEN for finding in findings):
        raise typer.Exit(1)


def without_torch(here: CommandContext) -> Iterator[CheckResult]:
    """Run the checks that import none of what decodes; where the settings cannot be read, those that need none. The
    broker is asked meanwhile."""
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
        yield checks.broker(here, asked)
        yield from rest
    finally:
        if asked:
            asked.kill()
            asked.communicate()


def with_torch(here: CommandContext) -> Iterator[CheckResult]:
    """Run the checks of what decodes, where the settings can be read."""
    (read,) = checks.settings(here)
    for check in WITH_TORCH if read.state == OK else ():
        yield from check(here)


def with_mend(finding: CheckResult) -> dict[str, str]:
    """Return the finding as a row, the remedy below what was found."""
    row = asdict(finding)
    return {**row, "found": f"{row['found']}\n→ {row['mend']}"} if row["mend"] else row
