"""Which versions' weights stay and which go, decided from their rows alone. Nothing is read or deleted here.

The rows themselves stay: lineage, evidence and the trail refer to them. Weights that always stay: number 0, the current
version and the one before it, what servers draft with, canaries with what the others serve meanwhile, what people hold
or gave a name, what a run under way starts from, and the newest version, from which training may go on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from sqlalchemy import select
from sqlalchemy.orm import Session

from storage.records import RunState, VersionState
from storage.settings import VersionLimits
from storage.sql.tables import CanaryRow, DraftRow, RunRow, ServingRow, VersionAliasRow, VersionRow
from storage.versions.holds import hold_of
from storage.versions.promotion import WATCHING

Rule = Literal["served", "age", "bytes"]
Rows = Sequence[VersionRow]


def doomed(session: Session, draft: DraftRow, limits: VersionLimits, now: float) -> dict[str, Rule]:
    """Return version -> the policy that ends it, of a locked draft."""
    rows = with_weights(session, draft.name)
    stay = why_kept(session, draft, rows)
    ended: dict[str, Rule] = {}
    if limits.served != "all":
        lately = served_lately(rows, draft.current_version, limits.served)
        ended |= {row.id: "served" for row in rows if row.id not in lately and row.id not in stay}
    if limits.age_seconds is not None:
        old = [row for row in rows if row.created_at < now - limits.age_seconds and row.id not in stay]
        ended |= {row.id: "age" for row in old if row.id not in ended}
    if limits.bytes is not None:
        left = [row for row in rows if row.id not in ended]
        ended |= {row.id: "bytes" for row in too_many(left, stay, limits.bytes)}
    return ended


def with_weights(session: Session, draft: str) -> Rows:
    """Return a draft's versions whose weights are there."""
    return session.scalars(select(VersionRow).where(VersionRow.draft == draft, VersionRow.deleted_at.is_(None))).all()


def why_kept(session: Session, draft: DraftRow, rows: Rows) -> dict[str, str]:
    """Return version -> why its weights stay whatever the limits say, for a message."""
    kept: dict[str, str] = {}
    if rows:
        newest = max(rows, key=lambda row: row.number)
        kept[newest.id] = "the newest, from which training may go on"
    kept |= {row.id: "not judged yet" for row in rows if row.state == VersionState.CANDIDATE.value}
    runs = select(RunRow.parent).where(RunRow.draft == draft.name, RunRow.state == RunState.CLAIMED.value)
    kept |= dict.fromkeys(session.scalars(runs), "what a run under way starts from")
    tried = select(CanaryRow.version, CanaryRow.base).where(CanaryRow.draft == draft.name, CanaryRow.state == WATCHING)
    for version, base in session.execute(tried):
        kept |= {version: "tried by a server", base: "served while another is tried"}
    served = select(ServingRow.version).where(ServingRow.draft == draft.name)
    kept |= dict.fromkeys(session.scalars(served), "what a server drafts with")
    if draft.previous_version:
        kept[draft.previous_version] = "the version before the current one"
    for alias in session.scalars(select(VersionAliasRow).where(VersionAliasRow.draft == draft.name)):
        kept[alias.version] = f"called {alias.name}"
    if hold := hold_of(draft):
        kept[hold.version] = hold.kind.value
    if draft.current_version:
        kept[draft.current_version] = "the current version"
    return kept | {row.id: "number 0" for row in rows if row.number == 0}


def served_lately(rows: Rows, current: str | None, count: int) -> set[str]:
    """Return the current version and its ancestors, back to the last ``count`` that served before it."""
    known: Mapping[str, VersionRow] = {row.id: row for row in rows}
    found, between, row = set[str](), list[str](), known.get(current or "")
    if row is not None:
        found.add(row.id)
    while count and row is not None and row.parent is not None:
        row = known.get(row.parent)
        if row is not None:
            between.append(row.id)
            if row.served_at is not None:
                found.update(between)
                count -= 1
    return found


def too_many(rows: Rows, stay: Mapping[str, str], limit: int) -> list[VersionRow]:
    """Return the oldest versions that may go, as many as it takes to fit into ``limit`` bytes."""
    over = sum(row.bytes or 0 for row in rows) - limit
    ended = []
    for row in sorted(rows, key=lambda row: row.number):
        if over <= 0:
            break
        if row.id not in stay:
            ended.append(row)
            over -= row.bytes or 0
    return ended
