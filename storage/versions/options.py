"""Options of a single draft that override ``[learn]``: a LoRA adapter where the rest trains all weights, for
example."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from storage.errors import BadInput, UnknownDraft
from storage.sql.database import Database
from storage.sql.leases import known_drafts, lock_draft
from storage.sql.tables import DraftRow

METHODS = ("full", "lora")
KEYS = ("method", "lora_rank")
"""Keys of ``[learn]`` that a draft may override."""


def checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the validated options. Raises BadInput for an unknown key, or a value out of range."""
    for key, value in options.items():
        if key not in KEYS:
            raise BadInput(reason=f"A draft has no option {key!r} of its own; known: {', '.join(KEYS)}.")
        if key == "method" and value not in METHODS:
            raise BadInput(reason=f"{value!r} is no method of training; known: {', '.join(METHODS)}.")
        if key == "lora_rank" and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise BadInput(reason=f"{value!r} is no rank of an adapter; give a whole number from 1 on.")
    return dict(options)


def read(db: Database, draft: str) -> dict[str, Any]:
    """Return a draft's options. Raises UnknownDraft."""
    with db.session(read_only=True) as session:
        row = session.get(DraftRow, draft)
        if row is None:
            raise UnknownDraft(draft=draft, known=known_drafts(session))
        return dict(row.options)


def write(db: Database, draft: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Replace a draft's options. Raises UnknownDraft, BadInput."""
    kept = checked(options)
    with db.session() as session:
        lock_draft(session, draft).options = kept
    return kept
