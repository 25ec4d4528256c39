"""Decisions of people about versions: each holds until it is lifted, and leaves its line in the audit trail.

A promotion and a roll-back by hand freeze the draft at what was chosen: a trainer would go on from it and replace it
within minutes. What a person chose is for all servers at once, and no canary.
"""

from __future__ import annotations

from typing import Any

from storage.errors import NotFound, UnknownDraft, WrongState
from storage.records import DraftVersion, VersionState
from storage.sql import audit
from storage.sql.database import Database
from storage.sql.ledger import get_row, known_drafts, lock_draft, to_record
from storage.sql.tables import DraftRow, VersionAliasRow
from storage.versions import promotion
from storage.versions.draft_choices import Hold, HoldKind, aliases, held, hold_of, require_alias, set_hold
from storage.versions.versions import VersionLedger


class DecisionLedger:
    """What people decide about drafts."""

    def __init__(self, db: Database, versions: VersionLedger) -> None:
        self._db, self._versions = db, versions

    # queries

    def holds(self) -> dict[str, Hold]:
        """Return draft -> its hold, of those that are held."""
        return self._db.read(held)

    def aliases(self) -> dict[str, list[str]]:
        """Return version -> its names of one's own."""
        return self._db.read(aliases)

    # what serves

    def promote(self, version_id: str) -> DraftVersion:
        """Make a version with sound files current, whatever the gate said, and freeze its draft there.

        Raises UnknownVersion, WeightsDamaged.
        """
        return self._choose(version_id, HoldKind.FROZEN, "drafts promote", "promoted by hand")

    def pin(self, version_id: str, reason: str = "pinned by hand") -> DraftVersion:
        """Make a version with sound files current, and hold its draft there. Raises as :meth:`promote`."""
        return self._choose(version_id, HoldKind.PINNED, "drafts pin", reason)

    def rollback(self, draft: str, reason: str, to: str | None = None) -> DraftVersion:
        """Leave the current version for ``to`` or its nearest sound ancestor, and freeze the draft there.

        Nothing is trained from what was left. Raises as :meth:`VersionLedger.rollback`.
        """
        left, target = self._versions.way_back(draft, to)
        with self._db.session() as session:
            owner = lock_draft(session, draft)
            before = _facts(owner)
            promotion.leave(session, left.id, target.id, VersionState.ROLLED_BACK, reason)
            set_hold(owner, HoldKind.FROZEN, f"rolled back by hand: {reason}")
            audit.note(session, "drafts rollback", target.id, {**_facts(owner), "left": left.id}, before)
            return to_record(get_row(session, target.id))

    def freeze(self, draft: str, reason: str = "frozen by hand") -> Hold:
        """Hold a draft at its current version. Raises UnknownDraft, and WrongState while that is a canary."""
        with self._db.session() as session:
            owner = lock_draft(session, draft)
            if owner.current_version is None:
                raise UnknownDraft(draft=draft, known=known_drafts(session))
            if promotion.is_watched(session, owner.current_version):
                needed = "one for all servers; pin it, or the version that the others serve"
                tried = {"version": owner.current_version, "state": "tried by one server"}
                raise WrongState(**tried, action="freezing", needed=needed)
            before = _facts(owner)
            hold = set_hold(owner, HoldKind.FROZEN, reason)
            audit.note(session, "drafts freeze", draft, _facts(owner), before)
            return hold

    def resume(self, draft: str) -> Hold | None:
        """Lift a draft's hold; return what it was, None where there was none. Raises UnknownDraft."""
        with self._db.session() as session:
            owner = lock_draft(session, draft)
            hold, before = hold_of(owner), _facts(owner)
            if hold is not None:
                owner.hold = {}
                audit.note(session, "drafts resume", draft, _facts(owner), before)
            return hold

    def _choose(self, version_id: str, kind: HoldKind, action: str, reason: str) -> DraftVersion:
        version = self._versions.get(version_id)
        self._versions.make_servable(version)
        with self._db.session() as session:
            owner = lock_draft(session, version.draft)
            before = _facts(owner)
            row = promotion.promote(session, version.id)
            promotion.note_released(session, row, reason)
            set_hold(owner, kind, reason)
            audit.note(session, action, row.id, _facts(owner), before)
            return to_record(row)

    # names

    def name(self, version_id: str, name: str) -> DraftVersion:
        """Give a version a name of one's own, which no other version of its draft has then. Raises UnknownVersion,
        BadInput."""
        require_alias(name)
        version = self._versions.get(version_id)
        with self._db.session() as session:
            lock_draft(session, version.draft)
            old = session.get(VersionAliasRow, (version.draft, name))
            before = {"version": old.version} if old else {}
            session.merge(VersionAliasRow(draft=version.draft, name=name, version=version.id))
            audit.note(session, "drafts alias", f"{version.draft}:{name}", {"version": version.id}, before)
        return version

    def unname(self, draft: str, name: str) -> str:
        """Take a name away; return the version that had it. Raises NotFound."""
        with self._db.session() as session:
            lock_draft(session, draft)
            row = session.get(VersionAliasRow, (draft, name))
            if row is None:
                raise NotFound(reason=f"No version of {draft} is called {name!r}; `osd drafts list` shows names.")
            session.delete(row)
            audit.note(session, "drafts alias", f"{draft}:{name}", {}, {"version": row.version})
            return row.version


def _facts(owner: DraftRow) -> dict[str, Any]:
    """Return what a decision is about, for the trail."""
    hold = hold_of(owner)
    return {"current": owner.current_version, "hold": hold.kind.value if hold else None}
