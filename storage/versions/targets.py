"""Targets: what was learned is about one of them, and only what is about the same one meets.

A target is known by the digest of its weights, tokenizer and generation settings. Each draft has a line of versions for
each target, with a number 0 and a current version of its own. The first line has the draft's own name, later ones have
names such as ``default@9f2c01ab``. Names of lines stand wherever the ledger says "draft"; routes name drafts.

    drafts.target    the line is about
    NULL             no target yet: the next one that serves here takes the line
    a digest         that target
    UNNAMED          one of before targets were named: set aside until somebody says which (``adopt``)

Stored requests name their target likewise; those of before have none, and meet no line.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import ColumnElement, exists, func, select, update
from sqlalchemy.orm import Session

from storage import records
from storage.errors import NotFound
from storage.names import LINE, draft_of, line_name
from storage.sql.database import Repository, changed_rows
from storage.sql.drivers import insert_for
from storage.sql.tables import DraftRow, SampleRow, TargetRow, VersionRow

UNNAMED = "unnamed"
SHORT = 8
"""Digits of a digest that are shown."""


@dataclass(frozen=True, slots=True)
class Adopted:
    """What :meth:`TargetLedger.adopt` gave to a target."""

    requests: int
    drafts: tuple[str, ...]
    left: tuple[str, ...]
    """Drafts that stay set aside, because their line for this target has learned by now."""


class TargetLedger(Repository):
    """The targets that served with this store."""

    def arrive(self, digest: str, name: str) -> list[str]:
        """Note that a target serves, and give it the lines that have none. Returns sentences for its user: when it is
        another target than served last, and when something is set aside."""
        with self._db.session() as session:
            before = session.scalar(select(TargetRow).order_by(TargetRow.served_at.desc()).limit(1))
            said = [_changed(before, digest, name)] if before and before.digest != digest else []
            now = records.now()
            new = insert_for(self._db.dialect)(TargetRow).values(
                digest=digest, name=name, first_seen=now, served_at=now
            )
            session.execute(new.on_conflict_do_update(index_elements=["digest"], set_={"served_at": now, "name": name}))
            session.execute(update(DraftRow).where(DraftRow.target.is_(None)).values(target=digest))
            if session.scalar(select(exists().where(DraftRow.target == UNNAMED))):
                said.append(
                    "What was kept before targets were named is set aside: if it is about this target, say so with "
                    "`osd replay adopt`."
                )
            return said

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


def _changed(before: TargetRow, digest: str, name: str) -> str:
    return (
        f"The target changed: {name} ({digest[:SHORT]}) serves where {before.name} ({before.digest[:SHORT]}) did. "
        "Drafts have lines of their own for each; what was learned about the other stays until it is purged."
    )
