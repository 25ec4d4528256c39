"""Proposed changes of routes, found in the traffic, for an admin to apply or decline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from storage import records
from storage.errors import UnknownProposal, WrongState
from storage.sql.database import Repository
from storage.sql.drivers import plain
from storage.sql.tables import RouteProposalRow, record_of


class ProposalKind(str, Enum):
    """The kind of change proposed."""

    SPLIT = "split"  # give a part of a route's traffic a route and a draft of its own
    MERGE = "merge"  # let one draft serve two routes that no longer differ
    DRIFT = "drift"  # look at a route whose traffic has changed


class ProposalState(str, Enum):
    """The state of a proposal."""

    OPEN = "open"  # not decided
    APPLIED = "applied"  # applied, by an admin or automatically
    DECLINED = "declined"  # declined by an admin, or because of newer ones or of what was forgotten


CANDIDATES = "proposals"
"""Folder below the data directory with the drafts of open splits, by number."""


@dataclass(frozen=True, slots=True)
class RouteProposal:
    """A proposed change of routes and its evidence."""

    id: int
    at: float
    """Unix seconds."""
    kind: ProposalKind
    state: ProposalState
    facts: Mapping[str, Any]
    """The change and its expected gain; no text of traffic."""


Proposals = list[RouteProposal]


class ProposalLedger(Repository):
    """The store of proposals."""

    def add(self, kind: ProposalKind, facts: Mapping[str, Any]) -> RouteProposal:
        """Enter an OPEN proposal."""
        with self._db.session() as session:
            row = RouteProposalRow(
                at=records.now(), kind=kind.value, state=ProposalState.OPEN.value, facts=plain(facts)
            )
            session.add(row)
            session.flush()
            return _to_record(row)

    def get(self, number: int) -> RouteProposal:
        """Return a proposal. Raises UnknownProposal."""
        return _to_record(self._db.read(_get, number))

    def list(self, state: ProposalState | None = None, limit: int = 100) -> Proposals:
        """Return proposals newest first, optionally in one state alone."""
        query = select(RouteProposalRow).order_by(RouteProposalRow.id.desc()).limit(limit)
        if state is not None:
            query = query.where(RouteProposalRow.state == state.value)
        return [_to_record(row) for row in self._db.scalars(query)]

    def set_state(self, number: int, state: ProposalState, facts: Mapping[str, Any] | None = None) -> RouteProposal:
        """Settle an OPEN proposal, adding ``facts`` to its own; setting the same state again is fine.

        Raises UnknownProposal, WrongState for one that was settled otherwise.
        """
        with self._db.session() as session:
            row = _get(session, number, lock=True)
            if row.state not in (ProposalState.OPEN.value, state.value):
                subject = f"proposal {number}"
                raise WrongState(version=subject, state=row.state, action=f"making it {state.value}", needed="open")
            row.state, row.facts = state.value, {**row.facts, **plain(facts or {})}
            return _to_record(row)


def _get(session: Session, number: int, *, lock: bool = False) -> RouteProposalRow:
    row = session.get(RouteProposalRow, number, with_for_update=lock)
    if row is None:
        raise UnknownProposal(proposal=number)
    return row


def _to_record(row: RouteProposalRow) -> RouteProposal:
    return record_of(RouteProposal, row, kind=ProposalKind(row.kind), state=ProposalState(row.state))
