"""The serving engines that osd is attached to: where each is reached, which draft it serves, and who attends to it.

One process at a time attends to an engine: it holds the row's lease and renews it; once that has run out, another
takes it over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import delete, or_, select, update

from storage import records
from storage.errors import BadInput, UnknownDraft, UnknownEngine
from storage.sql import audit
from storage.sql.database import Repository, clock, has_ended
from storage.sql.drivers import plain
from storage.sql.ledger import known_drafts
from storage.sql.tables import DraftRow, EngineRow, ServerRow, record_of


@dataclass(frozen=True, slots=True)
class AttachedEngine:
    """An engine as it was added and last probed."""

    name: str
    """The name that it gives itself; also that of its counters."""
    url: str
    draft: str
    added_at: float
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What the last probe found."""
    holder: str | None = None
    """The process that attends to it; None for none."""
    lease_until: float = 0.0


class EngineRegistry(Repository):
    """The registry of attached engines; every change by a person is recorded in the audit trail."""

    def add(self, name: str, url: str, draft: str, facts: Mapping[str, Any], who: str | None = None) -> AttachedEngine:
        """Add an engine, or change where it is reached and what it serves. Raises UnknownDraft, and BadInput for a URL
        that another engine has."""
        with self._db.session() as session:
            if session.get(DraftRow, draft) is None:
                raise UnknownDraft(draft=draft, known=known_drafts(session))
            other = session.scalar(select(EngineRow).where(EngineRow.url == url, EngineRow.name != name))
            if other is not None:
                raise BadInput(reason=f"{url} is {other.name} already; remove that first, or give {name} its own URL.")
            row = session.get(EngineRow, name, with_for_update=True)
            before = None if row is None else {"url": row.url, "draft": row.draft}
            if row is None:
                row = EngineRow(name=name, added_at=records.now(), holder=None, lease_until=0.0)
                session.add(row)
            row.url, row.draft, row.facts = url, draft, plain(facts)
            audit.note(session, "engines add", name, {"url": url, "draft": draft}, before, who=who)
            session.flush()
            return record_of(AttachedEngine, row)

    def list(self) -> list[AttachedEngine]:
        """Return every engine by name."""
        with self._db.session(read_only=True) as session:
            rows = session.scalars(select(EngineRow).order_by(EngineRow.name))
            return [record_of(AttachedEngine, row) for row in rows]

    def get(self, name: str) -> AttachedEngine:
        """Return an engine by its name or URL. Raises UnknownEngine."""
        found = [one for one in self.list() if name in (one.name, one.url)]
        if not found:
            raise UnknownEngine(engine=name, known=", ".join(one.name for one in self.list()) or "none")
        return found[0]

    def remove(self, name: str, who: str | None = None) -> AttachedEngine:
        """Remove an engine; it goes on serving what it has. Raises UnknownEngine."""
        engine = self.get(name)
        with self._db.session() as session:
            session.execute(delete(EngineRow).where(EngineRow.name == engine.name))
            session.execute(delete(ServerRow).where(ServerRow.id == engine.name))
            audit.note(session, "engines remove", engine.name, {}, {"url": engine.url, "draft": engine.draft}, who=who)
        return engine

    def note(self, name: str, facts: Mapping[str, Any]) -> None:
        """Note what a probe found; nothing where the engine was removed meanwhile."""
        with self._db.session() as session:
            session.execute(update(EngineRow).where(EngineRow.name == name).values(facts=plain(facts)))

    def hold(self, name: str, holder: str, seconds: float) -> bool:
        """Take or renew an engine's lease; return whether this process attends to it from now on."""
        with self._db.session() as session:
            at, until = clock(session), EngineRow.lease_until
            free = or_(EngineRow.holder == holder, EngineRow.holder.is_(None), has_ended(until - seconds, until, at))
            values = {"holder": holder, "lease_until": at + seconds}
            taken: Any = session.execute(update(EngineRow).where(EngineRow.name == name, free).values(**values))
            return bool(taken.rowcount)

    def let_go(self, holder: str) -> None:
        """End a process's leases."""
        with self._db.session() as session:
            values = {"holder": None, "lease_until": 0.0}
            session.execute(update(EngineRow).where(EngineRow.holder == holder).values(**values))
