"""Staged rollout of new versions: one server serves a version first, the others follow once it has proved itself.

    stage(draft, worker)     which version a server should serve now; opens, claims and takes over canaries as needed
    release, take_back       the watch's decision

There is no coordinator: each server asks the database, which answers all alike. Of the live servers, the one with the
smallest hash of its name and the version is the canary; it alone writes the claim. If it is lost, the next one takes
over, even if it is the only one; a version with which ``LOST`` servers were lost is taken back. Where just one server
lives when a version comes, it takes the current version directly.

The version stays READY during the trial; the SERVING version is what all others serve.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha256
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from storage import records
from storage.access.processes import servers
from storage.errors import UnknownDraft
from storage.records import DraftVersion, VersionState
from storage.sql.database import Repository
from storage.sql.drivers import plain
from storage.sql.ledger import get_row, known_drafts, lock_draft, to_record
from storage.sql.tables import CanaryRow, DraftRow, VersionRow, record_of
from storage.versions import promotion

LOST = 3
"""Number of servers lost with a version before the version is taken for the cause."""


class CanaryState(str, Enum):
    """The state of a canary."""

    WATCHING = "watching"  # one server serves it, or is about to
    RELEASED = "released"  # all may serve it
    TAKEN_BACK = "taken_back"  # it was worse, did not run, or an admin took it back
    OVERTAKEN = "overtaken"  # another version was made current by hand meanwhile


@dataclass(frozen=True, slots=True)
class Canary:
    """A version that one server serves before the others."""

    version: str
    draft: str
    base: str
    """The version that the others serve meanwhile."""
    state: CanaryState
    worker: str | None
    """The server that serves it."""
    claims: int
    """Workers that have served it and did not stop in order."""
    looks: int
    """Number of times its acceptance was judged."""
    began_at: float
    settled_at: float | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Measurements, and the reason for the decision."""


@dataclass(frozen=True, slots=True)
class CanaryStage:
    """The instruction to one server about a draft."""

    version: DraftVersion
    """The version that the server should serve."""
    canary: Canary | None = None
    """The canary under way, if there is one."""
    lost: bool = False
    """Whether too many servers were lost with the canary, so that it is to be taken back."""


def chosen(version: str, workers: Sequence[str]) -> str | None:
    """Return the server with the smallest hash of its name and the version; None where there are no servers."""
    return min(workers, key=lambda name: sha256(f"{version} {name}".encode()).digest(), default=None)


class CanaryLedger(Repository):
    """The ledger of canaries and the servers that serve them. Rows change with the draft locked."""

    def stage(self, draft: str, worker: str) -> CanaryStage:
        """Return what a server should serve for a draft. Raises UnknownDraft for one without weights."""
        with self._db.session(read_only=True) as session:
            view = _Rollout(session, draft, worker)
            if not view.changes:
                return view.stage()
        with self._db.session() as session:
            lock_draft(session, draft)
            view = _Rollout(session, draft, worker)
            view.change()
            session.flush()
            return _Rollout(session, draft, worker).stage()

    def watched(self, worker: str) -> list[Canary]:
        """Return the canaries that a server serves."""
        mine = CanaryRow.worker == worker, CanaryRow.state == CanaryState.WATCHING.value
        return [to_canary(row) for row in self._db.scalars(select(CanaryRow).where(*mine))]

    def list(self, draft: str | None = None, limit: int = 20) -> list[Canary]:
        """Return the newest canaries, newest first."""
        query = select(CanaryRow).order_by(CanaryRow.began_at.desc()).limit(limit)
        return [to_canary(row) for row in self._db.scalars(query if draft is None else query.filter_by(draft=draft))]

    def note_look(self, version: str, facts: Mapping[str, Any]) -> None:
        """Record that a canary's acceptance was judged once more."""
        with self._db.session() as session:
            row = session.get_one(CanaryRow, version, with_for_update=True)
            row.looks, row.facts = row.looks + 1, plain(facts)

    def release(self, version: str, facts: Mapping[str, Any]) -> bool:
        """Let all servers serve the canary; False when it was settled otherwise before."""
        with self._db.session() as session:
            return _settle(session, version, CanaryState.RELEASED, facts)

    def take_back(self, version: str, facts: Mapping[str, Any]) -> bool:
        """Settle a canary as taken back, after the version ledger did so; False when it was settled otherwise
        before."""
        with self._db.session() as session:
            return _settle(session, version, CanaryState.TAKEN_BACK, facts)

    def let_go(self, worker: str) -> None:
        """Release the canaries of a server that stops in order: others may claim them, and it does not count as
        lost."""
        mine = CanaryRow.worker == worker, CanaryRow.state == CanaryState.WATCHING.value
        with self._db.session() as session:
            free = {"worker": None, "claims": CanaryRow.claims - 1}
            session.execute(update(CanaryRow).where(*mine).values(**free))


def _settle(session: Session, version: str, state: CanaryState, facts: Mapping[str, Any]) -> bool:
    lock_draft(session, get_row(session, version).draft)
    row = session.get(CanaryRow, version)
    if row is None or row.state != CanaryState.WATCHING.value:
        return False
    _close(session, row, state, facts)
    return True


def _close(session: Session, row: CanaryRow, state: CanaryState, facts: Mapping[str, Any]) -> None:
    row.state, row.settled_at = state.value, records.now()
    row.facts = {**row.facts, **plain(facts)}
    session.flush()
    if state is CanaryState.RELEASED:
        promotion.released(session, get_row(session, row.version))


class _Rollout:
    """A draft's versions, canary and servers at one moment, from one server's perspective."""

    def __init__(self, session: Session, draft: str, worker: str) -> None:
        self.session, self.draft, self.worker = session, draft, worker
        owner = session.get(DraftRow, draft)
        if owner is None or owner.current_version is None:
            raise UnknownDraft(draft=draft, known=known_drafts(session))
        self.current = get_row(session, owner.current_version)
        self.open = session.scalar(
            select(CanaryRow).where(CanaryRow.draft == draft, CanaryRow.state == CanaryState.WATCHING.value)
        )
        self.alive = [each.id for each in servers(session) if each.alive and each.takes(draft)]
        self.alone = len({*self.alive, worker}) < 2

    @property
    def candidate(self) -> str:
        """The version of the open canary, or of the one that would be opened."""
        return self.open.version if self.open else self.current.id

    @property
    def mine(self) -> bool:
        """Whether this server is the one that should serve the canary."""
        return self.worker == chosen(self.candidate, self.alive)

    @property
    def claimed(self) -> bool:
        """Whether a live server serves the canary."""
        return self.open is not None and self.open.worker in self.alive

    @property
    def lost(self) -> bool:
        """Whether too many servers were lost with it."""
        return self.open is not None and not self.claimed and self.open.claims >= LOST

    @property
    def settled(self) -> CanaryState | None:
        """The state that settles the open canary without its watch's decision; None while it stays open."""
        if self.open is None:
            return None
        state = VersionState(get_row(self.session, self.open.version).state)
        if state in (VersionState.ROLLED_BACK, VersionState.QUARANTINED):
            return CanaryState.TAKEN_BACK
        is_other = self.current.id != self.open.version
        return CanaryState.OVERTAKEN if is_other and self._is_released(self.current) else None

    @property
    def changes(self) -> bool:
        """Whether this server has a change to write."""
        if self.open:
            return bool(self.settled) or (not self.claimed and not self.lost and self.mine)
        return not self.alone and self.mine and not self._is_released(self.current)

    def change(self) -> None:
        """Write the change, with the draft locked."""
        if self.open and (state := self.settled):
            _close(self.session, self.open, state, {})
        elif self.open and self.changes:
            self.open.worker, self.open.claims = self.worker, self.open.claims + 1
        elif self.changes:
            self._begin()

    def _begin(self) -> None:
        self.session.merge(CanaryRow(
            version=self.current.id, draft=self.draft, base=self._base(), state=CanaryState.WATCHING.value,
            worker=self.worker, claims=1, looks=0, began_at=records.now(), settled_at=None, facts={},
        ))  # fmt: skip

    def stage(self) -> CanaryStage:
        """Return what the server should serve."""
        canary = to_canary(self.open) if self.open else None
        if self.open:
            version = self.open.version if self.open.worker == self.worker else self.open.base
        else:
            version = self.current.id if self.alone or self._is_released(self.current) else self._base()
        return CanaryStage(to_record(get_row(self.session, version)), canary, self.lost)

    def _is_released(self, row: VersionRow) -> bool:
        """Return whether all servers may serve a version: they did before, or it is the draft's root."""
        if row.parent is None or row.state in (VersionState.SERVING.value, VersionState.RETIRED.value):
            return True
        known = self.session.get(CanaryRow, row.id)
        return known is not None and known.state == CanaryState.RELEASED.value

    def _base(self) -> str:
        """Return the version released last: the SERVING one, else the current version's nearest released ancestor."""
        of = VersionRow.draft == self.draft, VersionRow.id != self.current.id
        serving = select(VersionRow.id).where(*of, VersionRow.state == VersionState.SERVING.value)
        if found := self.session.scalar(serving.order_by(VersionRow.number.desc()).limit(1)):
            return found
        row = self.current
        while row.parent is not None:
            row = get_row(self.session, row.parent)
            if self._is_released(row) and row.deleted_at is None and row.state not in (
                VersionState.ROLLED_BACK.value, VersionState.QUARANTINED.value
            ):  # fmt: skip
                break
        return row.id


def to_canary(row: CanaryRow) -> Canary:
    """Convert a row to a record."""
    return record_of(Canary, row, state=CanaryState(row.state))
