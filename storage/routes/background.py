"""Prompts of the traffic as what belongs to no taught topic: hashed features, no text.

Topics are told from one another by their examples, and from the rest of the world by this. A row goes with its
request: when that ends or is forgotten, the database deletes the row with it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from sqlalchemy import delete, select

from storage.sql.database import Database
from storage.sql.route_log import GROUP, lock_routes, note
from storage.sql.tables import AuditRow, RouteBackgroundRow

Features = npt.NDArray[np.int64]
ACTION = "background"


class BackgroundStore:
    """Features of prompts that stand for what belongs to no topic."""

    def __init__(self, db: Database) -> None:
        self._db = db

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
        with self._db.session(read_only=True) as session:
            return [np.frombuffer(row, "<u4").astype(np.int64) for row in session.scalars(newest)]

    def taken_at(self) -> tuple[int, int]:
        """Return the number of prompts taken last, and the revision of the routes then; zeros before the first."""
        last = select(AuditRow).where(AuditRow.action == f"{GROUP} {ACTION}").order_by(AuditRow.id.desc()).limit(1)
        with self._db.session(read_only=True) as session:
            row = session.scalar(last)
            return (int(row.after["prompts"]), row.id) if row else (0, 0)
