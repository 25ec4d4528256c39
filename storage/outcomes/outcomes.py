"""Outcomes of drafting: sums by minute, hour, day and week, and the newest requests one by one.

Sums are stored at all four spans when they are written, so that a year is answered from its 53 weeks.
Servers write rows of their own (``worker`` is part of the key), so they seldom wait for each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from sqlalchemy import String, delete, func, insert, literal_column, select
from sqlalchemy.orm import Session

from storage import records
from storage.errors import BadInput
from storage.outcomes.outcome_window import EVERYTHING, Window, grouped
from storage.records import Outcome, ratio
from storage.routes.route_names import under_present_names
from storage.sql.database import Database
from storage.sql.drivers import insert_for
from storage.sql.forgotten import Finished, forgotten, take_turns
from storage.sql.outcome_tables import COUNTS, OUTCOME_KEYS, CounterRow, OutcomeBatchRow, OutcomeRow, add_counts
from storage.sql.spans import SPANS
from storage.sql.tables import table_of

LOG_ROWS = 20_000
"""Number of single outcomes kept."""

LOGGED = ("request_id", "finished_at", *OUTCOME_KEYS, *COUNTS)
_logged = attrgetter(*LOGGED)
ENGINE = "CASE WHEN controller IN ('vllm', 'sglang') THEN worker ELSE 'osd' END"
"""An attached engine by its name; our own servers together are osd.

It holds no parameter: PostgreSQL would take that of SELECT and that of GROUP BY for two.
"""
COLUMNS: dict[str, Any] = {
    "route": CounterRow.route,
    "version": CounterRow.draft_version,
    "controller": CounterRow.controller,
    "tenant": CounterRow.tenant,
    "worker": CounterRow.worker,
    "engine": literal_column(ENGINE, String),
} | dict.fromkeys(SPANS)
"""Columns to group acceptance by; a time is the Unix second at which its span starts."""


class AcceptanceRow(NamedTuple):
    """Sums over one group of outcomes, in the order of COUNTS, and the measures that follow from them."""

    by: Mapping[str, Any]
    """The group's key: route, version, controller, tenant, worker, engine, or minute, hour, day (Unix seconds)."""
    requests: int
    rounds: int
    drafted: int
    accepted: int
    rejections: int
    emitted: int
    prompt_tokens: int
    draft_ms: float
    verify_ms: float

    @property
    def alpha(self) -> float | None:
        """Token acceptance rate α: accepted ÷ (accepted + rejections), Eq. 2 of on-the-fly adaptation."""
        return ratio(self.accepted, self.accepted + self.rejections)

    @property
    def draft_acceptance_rate(self) -> float | None:
        """Accepted ÷ drafted: what vLLM calls the acceptance rate."""
        return ratio(self.accepted, self.drafted)

    @property
    def mean_acceptance_length(self) -> float | None:
        """τ: emitted ÷ rounds, the target's own token included."""
        return ratio(self.emitted, self.rounds)

    @property
    def discard_rate(self) -> float | None:
        """(Drafted − accepted) ÷ emitted (SpecDec++)."""
        return ratio(self.drafted - self.accepted, self.emitted)

    @property
    def verification_rate(self) -> float | None:
        """Rounds ÷ emitted (SpecDec++)."""
        return ratio(self.rounds, self.emitted)

    def as_dict(self) -> dict[str, Any]:
        """Return the group, the measures and the sums as one flat dictionary."""
        sums = self._asdict()
        return {**sums.pop("by"), **{name: getattr(self, name) for name in MEASURES}, **sums}


MEASURES = ("alpha", "draft_acceptance_rate", "mean_acceptance_length", "discard_rate", "verification_rate")


class OutcomeStore:
    """The store of finished requests' outcomes."""

    def __init__(self, db: Database, log_rows: int = LOG_ROWS) -> None:
        self._db = db
        self._log_rows = log_rows

    def add(
        self, outcomes: Sequence[Outcome], worker: str, batch: str | None = None, known: Sequence[str] = ()
    ) -> bool:
        """Add outcomes to the sums and to the log, in one transaction; return whether they were new.

        An outcome that arrives late for a renamed route gets its new name; one of a forgotten request gets no line in
        the log. ``batch`` identifies the call: a batch is added once, however often it is sent after an error.
        ``known`` are batches that the sender will never send again: their ids are deleted.
        """
        if not outcomes:
            return False
        with self._db.session() as session:
            if known:
                session.execute(delete(OutcomeBatchRow).where(OutcomeBatchRow.id.in_(known)))
            if batch is not None and not _is_new(session, self._db.dialect, batch):
                return False
            take_turns(session)
            gone = forgotten(session, (Finished(each.request_id, each.tenant, each.finished_at) for each in outcomes))
            outcomes = under_present_names(session, outcomes)
            add_counts(session, outcomes, worker)
            if lines := [_line(outcome, worker) for outcome in outcomes if outcome.request_id not in gone]:
                session.execute(insert(table_of(OutcomeRow)), lines)
            newest = select(func.max(OutcomeRow.id)).scalar_subquery()
            session.execute(delete(OutcomeRow).where(OutcomeRow.id <= newest - self._log_rows))
        return True

    def acceptance(self, by: Sequence[str] = (), window: Window = EVERYTHING) -> list[AcceptanceRow]:
        """Return sums grouped by route, version, controller, tenant, worker, engine, and one of minute, hour, day.
        Raises BadInput for another name."""
        names = (by,) if isinstance(by, str) else tuple(by)
        if unknown := [name for name in names if name not in COLUMNS]:
            raise BadInput(reason=f"Acceptance cannot be told apart by {unknown[0]!r}; known: {', '.join(COLUMNS)}.")
        found = self._db.read(grouped, CounterRow, window, {name: COLUMNS[name] for name in names}, COUNTS)
        return [AcceptanceRow(dict(zip(names, key, strict=True)), *sums) for key, sums in found.items()]

    def recent(
        self,
        *,
        version: str | None = None,
        request_id: str | None = None,
        since: float | None = None,
        limit: int = 100,
    ) -> list[Outcome]:
        """Return the newest outcomes, newest first, of those that the log holds."""
        query = select(OutcomeRow).order_by(OutcomeRow.id.desc()).limit(limit)
        if version is not None:
            query = query.where(OutcomeRow.draft_version == version)
        if request_id is not None:
            query = query.where(OutcomeRow.request_id == request_id)
        if since is not None:
            query = query.where(OutcomeRow.finished_at >= since)
        return [Outcome(**{name: getattr(row, name) for name in LOGGED}) for row in self._db.scalars(query)]

    def newest(self) -> dict[str, float]:
        """Return when each server and engine finished the newest of its requests that the log holds, in Unix
        seconds."""
        query = select(OutcomeRow.worker, func.max(OutcomeRow.finished_at)).group_by(OutcomeRow.worker)
        return {str(worker): float(at) for worker, at in self._db.rows(query)}


def _is_new(session: Session, dialect: str, batch: str) -> bool:
    """Record the batch; False when it was recorded before. Two that send it at once wait for each other here."""
    note = insert_for(dialect)(OutcomeBatchRow).values(id=batch, at=records.now()).on_conflict_do_nothing()
    return bool(session.execute(note.returning(OutcomeBatchRow.id)).scalar())


def _line(outcome: Outcome, worker: str) -> dict[str, Any]:
    return {"worker": worker, **dict(zip(LOGGED, _logged(outcome), strict=True))}
