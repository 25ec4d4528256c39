"""`osd audit`: who changed what, when, and from where."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osd.cli.context import CommandContext
from osd.cli.options import Moment, Newest
from osd.cli.out import NOTHING, Output, columns, print_json, print_table, when

if TYPE_CHECKING:
    from storage.sql.audit import AuditEntry

COLUMNS = columns(
    at="when", who="who", origin="from", action="what", subject="about", change="before → after",
)  # fmt: skip


@dataclass(frozen=True)
class TrailFilter:
    """The lines that are shown."""

    subject: Annotated[str, typer.Argument(metavar="SUBJECT")] | None = None
    """About this draft version, route, request, tenant, key, file or process."""
    action: Annotated[str, typer.Option(metavar="COMMAND")] | None = None
    """Entries of this command, or group of commands: drafts, 'router add'."""
    since: Moment | None = None
    """From then on: an age (30d) or a date."""
    limit: Newest = 50


def audit(here: CommandContext, wanted: TrailFilter, output: Output) -> None:
    """Show who changed what and when, from where, and what was before and after; the newest first.

    Each command and each admin route that changes something leaves a line, and so does osd where it acts by itself.
    There are counts and names in it, never a prompt.

    Examples: `osd audit --since 1d`, `osd audit --action drafts`
    """
    with here.store() as store:
        lines = store.trail.history(wanted.subject, wanted.limit, action=wanted.action, since=wanted.since)
    print_trail(lines, as_json=output.as_json, empty="No such change was made.")


def print_trail(
    lines: Iterable[AuditEntry | Mapping[str, Any]], *, as_json: bool, empty: str, title: str | None = None
) -> None:
    """Print lines of the trail as JSON, or as a table of what differs."""
    rows = [dict(line) if isinstance(line, Mapping) else asdict(line) for line in lines]
    if as_json:
        print_json(rows)
        return
    told = [{**row, "change": "; ".join(changes(row["before"], row["after"]))} for row in rows]
    print_table(told, COLUMNS, title=title, empty=empty)


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return what differs, ``key: before → after``, or ``key value`` where there was nothing before."""
    parts = []
    for key in {**before, **after}:
        old, new = (short(side.get(key), key) for side in (before, after))
        if old != new:
            parts.append(f"{key}: {old} → {new}" if before else f"{key} {new}")
    return parts


def short(value: Any, key: str = "") -> str:
    """Format a value in few characters."""
    if value in (None, "", [], {}, ()):
        return NOTHING
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {short(inner, name)}" for name, inner in value.items())
    if isinstance(value, (list, tuple)):
        return " | ".join(map(str, value))
    return when(value) if key.endswith("_at") else str(value)
