"""What people chose about a draft: a hold, names of its versions, and options of its own.

A hold is a decision about what a draft serves, which nothing replaces until it is lifted:

    pinned    at the version that was named
    frozen    at the version that is current; by hand, or by a promotion or a roll-back by hand

While a draft is held no run of it begins, one under way ends and gives its requests back, nothing is published, and the
watch takes nothing back. Damaged weights are left all the same, for the nearest sound version before them.

Versions have the names ``current`` and ``previous`` of every draft, and names of one's own. A name is written
``DRAFT:NAME``; without a draft it is one of the default draft's. Retention keeps what has a name of one's own.

Options override ``[learn]`` for a single draft: a LoRA adapter where the rest trains all weights, for example.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from pydantic import ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session

from storage import records
from storage.errors import BadInput, DraftHeld, UnknownDraft
from storage.records import DEFAULT_DRAFT
from storage.settings import LearnSettings
from storage.sql.drivers import plain
from storage.sql.ledger import NAME, known_drafts
from storage.sql.tables import DraftRow, VersionAliasRow, VersionRow
from storage.versions.feature_kinds import why_no_method


class HoldKind(str, Enum):
    """The kind of a hold."""

    PINNED = "pinned"  # at a version that was named
    FROZEN = "frozen"  # at what was current


@dataclass(frozen=True, slots=True)
class Hold:
    """One draft's hold."""

    kind: HoldKind
    version: str
    reason: str
    at: float
    """Unix seconds."""

    @property
    def words(self) -> str:
        """What is held, where and since when, for people."""
        since = datetime.fromtimestamp(self.at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return f"{self.kind.value} at {self.version} since {since} ({self.reason})"


def set_hold(draft: DraftRow, kind: HoldKind, reason: str) -> Hold:
    """Hold a locked draft at its current version."""
    hold = Hold(kind, str(draft.current_version), reason, records.now())
    draft.hold = plain(asdict(hold))
    return hold


def hold_of(draft: DraftRow) -> Hold | None:
    """Return a draft's hold; None where it is free."""
    return to_hold(draft.hold)


def to_hold(facts: Mapping[str, Any]) -> Hold | None:
    """Convert a column's facts to a record."""
    return Hold(**{**facts, "kind": HoldKind(facts["kind"])}) if facts else None


def require_free(draft: DraftRow) -> None:
    """Raise DraftHeld while the draft is held."""
    if hold := hold_of(draft):
        raise DraftHeld(draft=draft.name, held=hold.words)


def held(session: Session) -> dict[str, Hold]:
    """Return draft -> its hold, of those that are held."""
    rows = session.execute(select(DraftRow.name, DraftRow.hold).order_by(DraftRow.name))
    return {name: hold for name, facts in rows if (hold := to_hold(facts))}


CURRENT, PREVIOUS = "current", "previous"
"""Names that every draft has: what serves, and what was current before it."""


def resolve(session: Session, name: str) -> str | None:
    """Return the id of the version that a name stands for; None where there is no such name."""
    draft, _, alias = name.rpartition(":")
    draft = draft or DEFAULT_DRAFT
    if alias in (CURRENT, PREVIOUS):
        row = session.get(DraftRow, draft)
        return None if row is None else row.current_version if alias == CURRENT else row.previous_version
    found = session.get(VersionAliasRow, (draft, alias))
    return None if found is None else found.version


def require_alias(name: str) -> None:
    """Raise BadInput for what cannot be a name of one's own."""
    if name in (CURRENT, PREVIOUS):
        raise BadInput(reason=f"{name!r} is a name that every draft has; choose another.")
    if not NAME.fullmatch(name):
        raise BadInput(reason=f"{name!r} cannot name a version: use letters, digits, '.', '_' and '-', 64 at most.")


def aliases(session: Session) -> dict[str, list[str]]:
    """Return version -> its names of one's own."""
    found: dict[str, list[str]] = {}
    for row in session.scalars(select(VersionAliasRow).order_by(VersionAliasRow.draft, VersionAliasRow.name)):
        found.setdefault(row.version, []).append(row.name)
    return found


KEYS = ("method", "lora_rank")
"""Keys of ``[learn]`` that a draft may override."""


def checked_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the validated options. Raises BadInput for an unknown key, or a value out of range."""
    if unknown := sorted(set(options) - set(KEYS)):
        raise BadInput(reason=f"A draft has no option {unknown[0]!r} of its own; known: {', '.join(KEYS)}.")
    try:
        LearnSettings.model_validate(dict(options), strict=True)
    except ValidationError as error:
        problem = error.errors()[0]
        raise BadInput(reason=f"{problem['input']!r} is no {problem['loc'][0]} of a draft: {problem['msg']}.") from None
    return dict(options)


def set_options(session: Session, draft: DraftRow, options: dict[str, Any]) -> None:
    """Replace a locked draft's options. Raises BadInput for a method that is not for a draft of its kind."""
    current = session.get(VersionRow, draft.current_version)
    if current and (reason := why_no_method(current.kind, options.get("method"))):
        raise BadInput(reason=f"{draft.name}: {reason}.")
    draft.options = options


def read_options(session: Session, draft: str) -> dict[str, Any]:
    """Return a draft's options. Raises UnknownDraft."""
    row = session.get(DraftRow, draft)
    if row is None:
        raise UnknownDraft(draft=draft, known=known_drafts(session))
    return dict(row.options)
