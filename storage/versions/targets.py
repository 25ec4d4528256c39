"""Targets: what was learned is about one of them, and only what is about the same one meets.

A target is known by the digest of its weights, tokenizer and generation settings. Each draft has a line of versions for
each target, with a number 0 and a current version of its own. The first line has the draft's own name, later ones have
names such as ``default@9f2c01ab``. Names of lines stand wherever the ledger says "draft"; routes name drafts.

    drafts.target    the line is about
    NULL             no target yet: the next one that serves here takes the line
    a digest         that target
    UNNAMED          one of before targets were named: set aside until somebody says which (``adopt``)

Stored requests name their target likewise; those of before have none, and meet no line.

A target may be declared the successor of another with the same architecture and vocabulary: its lines then begin with
what the other's have learned (:mod:`storage.versions.heirs`), and the other's samples teach as far as both agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, delete, exists, func, select, update
from sqlalchemy.orm import Session

from storage import records
from storage.errors import BadInput, NotFound
from storage.names import LINE, draft_of, line_name
from storage.sql import audit
from storage.sql.database import Repository, changed_rows
from storage.sql.drivers import insert_for, plain
from storage.sql.tables import DraftRow, SampleRow, TargetRow, VersionRow, record_of

UNNAMED = "unnamed"
SHORT = 8
"""Digits of a digest that are shown."""
ALIKE = ("architecture", "vocabulary")
"""What a target and its successor have in common."""
DIVERGENCE = "divergence"

Divergence = Mapping[str, float]
"""By route, the mean total variation distance of two targets' distributions on the same texts, in [0, 1]."""


@dataclass(frozen=True, slots=True)
class ServedTarget:
    """A target that served."""

    digest: str
    name: str
    """The folder or hub name that it last served by."""
    first_seen: float
    served_at: float
    predecessor: str | None
    """Digest of the target that it succeeds."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """``architecture``, ``vocabulary`` and ``divergence``, as far as they are known."""


@dataclass(frozen=True, slots=True)
class Adopted:
    """What :meth:`TargetLedger.adopt` gave to a target."""

    requests: int
    drafts: tuple[str, ...]
    left: tuple[str, ...]
    """Drafts that stay set aside, because their line for this target has learned by now."""


class TargetLedger(Repository):
    """The targets that served with this store."""

    def arrive(
        self, digest: str, name: str, facts: Mapping[str, str] | None = None, *, successors: bool = False
    ) -> list[str]:
        """Note that a target serves, and give it the lines that have none. ``facts``: its architecture and vocabulary.
        With ``successors`` one that never served succeeds the one that served last, if both are alike. Returns
        sentences for its user: when it is another target than served last, and when something is set aside."""
        with self._db.session() as session:
            before = session.scalar(select(TargetRow).order_by(TargetRow.served_at.desc()).limit(1))
            known = session.get(TargetRow, digest)
            now = records.now()
            new = insert_for(self._db.dialect)(TargetRow).values(
                digest=digest, name=name, first_seen=now, served_at=now, facts={}
            )
            session.execute(new.on_conflict_do_update(index_elements=["digest"], set_={"served_at": now, "name": name}))
            row = session.get_one(TargetRow, digest, populate_existing=True)
            row.facts = {**row.facts, **(facts or {})}
            if successors and before and known is None and why_unlike(before, row) is None:
                _declare(session, before, row)
            said = [_changed(before, row)] if before and before.digest != digest else []
            session.execute(update(DraftRow).where(DraftRow.target.is_(None)).values(target=digest))
            if session.scalar(select(exists().where(DraftRow.target == UNNAMED))):
                said.append(
                    "What was kept before targets were named is set aside: if it is about this target, say so with "
                    "`osd replay adopt`."
                )
            return said

    def served(self) -> list[ServedTarget]:
        """Return the targets, in the order in which they came."""
        rows = self._db.scalars(select(TargetRow).order_by(TargetRow.first_seen, TargetRow.digest))
        return [record_of(ServedTarget, row) for row in rows]

    def succeed(self, old: str, new: str, *, in_place: bool = False) -> None:
        """Declare one target the successor of another, both by digest; again changes nothing. ``in_place``: an engine
        has replaced its weights, and they are alike for certain.

        Raises NotFound, and BadInput for targets that are not alike or not known to be, and for one that comes before
        the other already.
        """
        with self._db.session() as session:
            before, after = _get(session, old), _get(session, new)
            if reason := None if in_place else why_unlike(before, after):
                raise BadInput(reason=f"{_shown(after)} cannot succeed {_shown(before)}: {reason}.")
            if new in [old, *_ancestors(session, old)]:
                raise BadInput(reason=f"{_shown(after)} cannot succeed {_shown(before)}, which comes after it.")
            if after.predecessor != old:
                _declare(session, before, after)

    def left(self) -> set[str]:
        """Return the targets that a successor came after, and that did not serve again since."""
        served = {one.digest: one.served_at for one in self.served()}
        pairs = [(one.predecessor, one.served_at) for one in self.served() if one.predecessor]
        return {old for old, since in pairs if served.get(old, since) <= since}

    def ancestors(self, digest: str | None) -> list[str]:
        """Return the targets that a target succeeds, the nearest first."""
        return self._db.read(_ancestors, digest)

    def note_divergence(self, digest: str, old: str, found: Divergence) -> None:
        """Keep how far a target's distributions are from an earlier one's, beside what is known of other routes."""
        with self._db.session() as session:
            row = session.get_one(TargetRow, digest, with_for_update=True)
            known = row.facts.get(DIVERGENCE, {})
            row.facts = {**row.facts, DIVERGENCE: {**known, old: {**known.get(old, {}), **plain(dict(found))}}}

    def divergence(self, digest: str | None) -> dict[str, Divergence]:
        """Return by earlier target how far a target is from it; empty where that was not measured."""
        with self._db.session(read_only=True) as session:
            row = None if digest is None else session.get(TargetRow, digest)
            return {} if row is None else dict(row.facts.get(DIVERGENCE, {}))

    def forget(self, digest: str) -> None:
        """Forget a target, and that others succeed it: nothing is inherited from it any more. Raises NotFound, and
        BadInput for the one that served last."""
        self.require_old(digest)
        with self._db.session() as session:
            row = _get(session, digest)
            audit.note(session, "targets forget", digest, {}, {"name": row.name, "predecessor": row.predecessor})
            heirs = update(TargetRow).where(TargetRow.predecessor == digest)
            session.execute(heirs.values(predecessor=row.predecessor))
            session.execute(delete(TargetRow).where(TargetRow.digest == digest))

    def require_old(self, digest: str) -> None:
        """Raise BadInput for the target that served last."""
        if digest == self.newest():
            raise BadInput(reason=f"{digest[:SHORT]} served last; a target is forgotten once another serves.")

    def newest(self) -> str | None:
        """Return the digest of the target that began to serve last; None before the first."""
        return self._db.scalar(select(TargetRow.digest).order_by(TargetRow.served_at.desc()).limit(1))

    def name_of(self, digest: str | None) -> str | None:
        """Return the folder or hub name that a target last served by; None where it never did."""
        return self._db.scalar(select(TargetRow.name).where(TargetRow.digest == digest))

    def named(self, begin: str) -> str:
        """Return the digest that begins so. Raises NotFound unless there is one."""
        known = {row.digest: row.name for row in self._db.scalars(select(TargetRow).order_by(TargetRow.served_at))}
        found = [digest for digest in known if digest.startswith(begin)]
        if len(found) != 1:
            shown = ", ".join(f"{digest[:SHORT]} ({name})" for digest, name in known.items()) or "none"
            raise NotFound(reason=f"{begin!r} begins the digest of {len(found)} targets; known: {shown}.")
        return found[0]

    def of_lines(self) -> dict[str, str | None]:
        """Return line -> its target."""
        return {row.name: row.target for row in self._db.scalars(select(DraftRow))}

    def requests(self) -> dict[str, int]:
        """Return target -> the number of stored requests that it answered."""
        query = select(SampleRow.target, func.count()).where(SampleRow.target.is_not(None)).group_by(SampleRow.target)
        return {str(digest): count for digest, count in self._db.rows(query)}

    def unnamed(self) -> int:
        """Return the number of stored requests that name no target."""
        with self._db.session(read_only=True) as session:
            query = select(func.count()).select_from(SampleRow).where(SampleRow.target.is_(None))
            return session.scalar(query) or 0

    def adopt(self, digest: str, name: str) -> Adopted:
        """Say that what was kept before targets were named is about this one."""
        with self._db.session() as session:
            new = insert_for(self._db.dialect)(TargetRow).values(
                digest=digest, name=name, first_seen=records.now(), served_at=records.now()
            )
            session.execute(new.on_conflict_do_nothing())
            done = session.execute(update(SampleRow).where(SampleRow.target.is_(None)).values(target=digest))
            drafts, left = [], []
            for row in session.scalars(select(DraftRow).where(DraftRow.target == UNNAMED).order_by(DraftRow.name)):
                learned = VersionRow.draft == line_name(row.name, digest), VersionRow.number > 0
                if session.scalar(select(exists().where(*learned))):
                    left.append(row.name)
                else:
                    row.target = digest
                    drafts.append(row.name)
            return Adopted(changed_rows(done), tuple(drafts), tuple(left))


def line_of(session: Session, draft: str, target: str | None) -> DraftRow | None:
    """Return a draft's line for a target, or one that is about none yet; without a target, the row of that name."""
    row = session.get(DraftRow, draft)
    if target is None or LINE in draft or (row is not None and row.target in (None, target)):
        return row
    return session.get(DraftRow, line_name(draft, target))


def line_to_open(session: Session, draft: str, target: str | None) -> str:
    """Return the name of a draft's line for a target, taking the draft's own row while it is about none.

    A new line takes over the options of the draft's first one.
    """
    first = session.get(DraftRow, draft, with_for_update=True)
    if first is None or target is None or first.target in (None, target):
        if first is not None and target is not None:
            first.target = target
        return draft
    name = line_name(draft, target)
    if session.get(DraftRow, name) is None:
        session.add(
            DraftRow(name=name, created_at=records.now(), options=first.options, target=target, current_version=None)
        )
        session.flush()
    return name


def lines(session: Session, drafts: Iterable[str]) -> list[str]:
    """Return the lines of these drafts that have weights and are a target's, by name."""
    wanted = set(drafts)
    rows = session.scalars(select(DraftRow).where(DraftRow.current_version.is_not(None)).order_by(DraftRow.name))
    return [
        row.name
        for row in rows
        if draft_of(row.name) in wanted
        and row.target != UNNAMED
        and line_of(session, draft_of(row.name), row.target) is row
    ]


def about(session: Session, line: str) -> ColumnElement[bool]:
    """Return the SQL condition for stored requests that are about a line's target."""
    row = session.get(DraftRow, line)
    return SampleRow.target == (row.target if row else None)


def why_unlike(before: TargetRow, after: TargetRow) -> str | None:
    """Return why one target cannot succeed another; None where it can: both have one architecture and one vocabulary,
    for what is learned is about token ids."""
    for name in ALIKE:
        had, has = before.facts.get(name), after.facts.get(name)
        if had is None or has is None:
            unknown = before if had is None else after
            return f"of {_shown(unknown)} the {name} is not known; serve it once with this osd"
        if had != has:
            return "its tokenizer is another" if name == "vocabulary" else f"its architecture is {has}, not {had}"
    return None


def _declare(session: Session, before: TargetRow, after: TargetRow) -> None:
    audit.note(session, "targets succeed", after.digest, {"predecessor": before.digest}, {"was": after.predecessor})
    after.predecessor = before.digest


def _get(session: Session, digest: str) -> TargetRow:
    if (row := session.get(TargetRow, digest, with_for_update=True)) is None:
        raise NotFound(reason=f"No target with the digest {digest[:SHORT]} has served here.")
    return row


def _ancestors(session: Session, digest: str | None) -> list[str]:
    found: list[str] = []
    row = None if digest is None else session.get(TargetRow, digest)
    while row is not None and row.predecessor is not None and row.predecessor not in found:
        found.append(row.predecessor)
        row = session.get(TargetRow, row.predecessor)
    return found


def _shown(row: TargetRow) -> str:
    return f"{row.name} ({row.digest[:SHORT]})"


def _changed(before: TargetRow, after: TargetRow) -> str:
    said = f"The target changed: {_shown(after)} serves where {_shown(before)} did. "
    if after.predecessor == before.digest:
        return said + "It is its successor: what drafts learned is judged on it, and goes on if it is good."
    said += "Drafts have lines of their own for each; what was learned about the other stays until it is purged."
    if after.first_seen < before.first_seen:
        return said
    declare = f"osd targets succeed {before.digest[:SHORT]} {after.digest[:SHORT]}"
    return f"{said} If it is its successor, say so with `{declare}`."
