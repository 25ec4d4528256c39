"""What topics are learned from: example texts that an admin taught, and prompts of the traffic as what belongs to none.

Examples are kept until they are deleted. A text is stored once, whatever its topic; teaching it again under another
topic moves it. Prompts of traffic never enter by themselves; of those that stand for what belongs to no topic only
hashed features are kept. Such a row goes with its request: when that ends or is forgotten, the database deletes it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from storage import records
from storage.errors import BadInput, UnknownTopic
from storage.redaction import Redactor
from storage.routes.route_rows import GROUP, lock_routes, note
from storage.sql.audit import AuditRow
from storage.sql.database import Database, Repository
from storage.sql.tables import RouteBackgroundRow, RouteExampleRow

TOPIC_LENGTH = 200
TEXT_LENGTH = 100_000
"""Maximum length of an example in characters."""

Pairs = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class TeachResult:
    """The counts of a teaching call."""

    new: int
    moved: int
    """Known texts that moved to another topic."""
    known: int
    """Texts that had this topic already."""


class ExampleStore:
    """The taught examples of topics."""

    def __init__(self, db: Database, redactor: Redactor) -> None:
        self._db, self._redactor = db, redactor

    def teach(self, examples: Iterable[tuple[str, str]], who: str | None = None) -> TeachResult:
        """Store (topic, text) pairs, as the redaction hook leaves them, all or none, with one line in the audit trail
        that has counts but no texts.

        Raises BadInput for an empty or too long topic or text.
        """
        with self._db.session() as session:
            lock_routes(session)
            return teach(session, examples, who, self._redactor)

    def preview(self, examples: Iterable[tuple[str, str]]) -> Pairs:
        """Return what :meth:`list` would return after teaching these, without teaching them.

        Raises BadInput as :meth:`teach`.
        """
        topics = {text: topic for topic, text in self.list()}
        topics.update((text, topic.strip()) for topic, text in _allowed(examples, self._redactor))
        return [(topic, text) for text, topic in topics.items()]

    def forget(self, topic: str, who: str | None = None) -> int:
        """Delete a topic's examples; return how many. Raises UnknownTopic."""
        with self._db.session() as session:
            lock_routes(session)
            gone = session.scalars(select(RouteExampleRow.id).where(RouteExampleRow.topic == topic)).all()
            if not gone:
                raise UnknownTopic(topic=topic, known=", ".join(_counts(session)) or "none")
            session.execute(delete(RouteExampleRow).where(RouteExampleRow.topic == topic))
            note(session, who, "forget", None, {"topic": topic, "examples": len(gone)}, {})
        return len(gone)

    def revision(self) -> int:
        """Return the number of the newest change of what topics are learned from; 0 before there was one."""
        learned_from = AuditRow.action.in_(("router teach", "router forget", "router background"))
        newest = select(func.max(AuditRow.id)).where(learned_from)
        return self._db.scalar(newest) or 0

    def list(self) -> Pairs:
        """Return (topic, text) pairs, in the order in which they were taught."""
        with self._db.session(read_only=True) as session:
            rows = session.execute(
                select(RouteExampleRow.topic, RouteExampleRow.text).order_by(RouteExampleRow.at, RouteExampleRow.id)
            )
            return [(topic, text) for topic, text in rows]

    def counts(self) -> dict[str, int]:
        """Return topic -> number of examples."""
        return self._db.read(_counts)


def teach(session: Session, examples: Iterable[tuple[str, str]], who: str | None, redactor: Redactor) -> TeachResult:
    """Run :meth:`ExampleStore.teach` within a transaction that has locked the routes."""
    wanted = {_hash(text): (topic.strip(), text) for topic, text in _allowed(examples, redactor)}
    taught = _keep(session, wanted)
    if taught.new or taught.moved:
        topics = sorted({topic for topic, _ in wanted.values()})
        note(session, who, "teach", None, {}, {"topics": topics, "new": taught.new, "moved": taught.moved})
    return taught


def _keep(session: Session, wanted: dict[str, tuple[str, str]]) -> TeachResult:
    known = {row.hash: row for row in _known(session, list(wanted))}
    new = [digest for digest in wanted if digest not in known]
    moved = [digest for digest, row in known.items() if row.topic != wanted[digest][0]]
    at = records.now()
    for digest in new:
        topic, text = wanted[digest]
        session.add(RouteExampleRow(at=at, topic=topic, text=text, hash=digest))
    for digest in moved:
        known[digest].topic = wanted[digest][0]
    session.flush()
    return TeachResult(len(new), len(moved), len(wanted) - len(new) - len(moved))


def _known(session: Session, digests: list[str]) -> Iterable[RouteExampleRow]:
    for start in range(0, len(digests), 5_000):
        some = digests[start : start + 5_000]
        yield from session.scalars(select(RouteExampleRow).where(RouteExampleRow.hash.in_(some)))


def _counts(session: Session) -> dict[str, int]:
    topic = RouteExampleRow.topic
    return {row[0]: row[1] for row in session.execute(select(topic, func.count()).group_by(topic).order_by(topic))}


def _allowed(examples: Iterable[tuple[str, str]], redactor: Redactor) -> Pairs:
    """Return the examples as the redaction hook leaves them, without those that it does not want kept."""
    seen = [(topic, redactor.text(text)) for topic, text in map(_checked, examples)]
    return [(topic, text) for topic, text in seen if text and text.strip()]


def _checked(example: tuple[str, str]) -> tuple[str, str]:
    topic, text = example
    if not 0 < len(topic.strip()) <= TOPIC_LENGTH:
        raise BadInput(reason=f"{topic[:40]!r} cannot name a topic: it needs 1 to {TOPIC_LENGTH} characters.")
    if not text.strip() or "\0" in text:
        raise BadInput(reason=f"An example of {topic!r} is empty or holds a zero byte.")
    if len(text) > TEXT_LENGTH:
        raise BadInput(reason=f"An example of {topic!r} has {len(text):,} characters, {TEXT_LENGTH:,} at most.")
    return topic, text


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


Features = npt.NDArray[np.int64]
ACTION = "background"


class BackgroundStore(Repository):
    """Features of prompts that stand for what belongs to no topic."""

    def replace(self, features: Mapping[str, Features], who: str | None = None) -> None:
        """Keep these, (n,) hashed features by request id, in place of all others, with a line in the audit trail."""
        with self._db.session() as session:
            lock_routes(session)
            session.execute(delete(RouteBackgroundRow))
            for request_id, found in features.items():
                session.add(RouteBackgroundRow(request_id=request_id, features=found.astype("<u4").tobytes()))
            note(session, who, ACTION, None, {}, {"prompts": len(features)})

    def list(self) -> list[Features]:
        """Return the features of every prompt, shape (n,) each, in the order of request ids."""
        newest = select(RouteBackgroundRow.features).order_by(RouteBackgroundRow.request_id)
        return [np.frombuffer(row, "<u4").astype(np.int64) for row in self._db.scalars(newest)]

    def taken_at(self) -> tuple[int, int]:
        """Return the number of prompts taken last, and the revision of the routes then; zeros before the first."""
        last = select(AuditRow).where(AuditRow.action == f"{GROUP} {ACTION}").order_by(AuditRow.id.desc()).limit(1)
        with self._db.session(read_only=True) as session:
            row = session.scalar(last)
            return (int(row.after["prompts"]), row.id) if row else (0, 0)
