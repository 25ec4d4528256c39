"""The lineage of learning: which draft versions learned from which requests, through runs and by descent.

A version learned from a request if its run did, or if the weights that it started from did.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from storage.records import RunState
from storage.routes.proposals import ProposalKind, ProposalState
from storage.sql.database import chunks
from storage.sql.ledger import HEIR_OF
from storage.sql.tables import RouteProposalRow, RunRow, SampleRow, VersionRow

STARTED_FROM = "started_from"
"""Key of a run's result: the version whose weights it started from, where that is not its parent."""


@dataclass(frozen=True, slots=True)
class Learned:
    """The versions, runs and topics that learned from some requests."""

    versions: tuple[str, ...]
    """Versions of the runs that had the requests, and all their descendants, by draft and number."""
    under_way: tuple[str, ...]
    """Unfinished runs that have the requests, whose versions will have learned from them too."""
    topics: tuple[str, ...] = ()
    """Topics whose taught examples an applied split took from the requests, so that their text is stored there."""


@dataclass(frozen=True, slots=True)
class Split:
    """A draft created by an applied proposal to split a route: trained without a run in the ledger."""

    root: str
    draft: str
    """The draft from one of whose versions it was trained."""
    at: float
    members: frozenset[str]
    """Requests that it was trained on."""
    examples: dict[str, frozenset[str]]
    """Topic -> requests whose prompts became its examples."""


def learned_from(session: Session, request_ids: Sequence[str], tenant: str | None = None) -> Learned:
    """Return the versions and runs that learned from any of these requests, or from any of the tenant's."""
    asked = set(request_ids)
    runs, under_way = set(), []
    came_from: dict[str | None, str | None] = {}
    query = select(RunRow.id, RunRow.request_ids, RunRow.replayed, RunRow.tenants, RunRow.state, RunRow.result)
    for run_id, claimed, replayed, tenants, state, result in session.execute(query.execution_options(yield_per=100)):
        came_from[run_id] = result.get(STARTED_FROM)
        if tenant in tenants or not asked.isdisjoint(claimed) or not asked.isdisjoint(replayed):
            runs.add(run_id)
            if state == RunState.CLAIMED.value:
                under_way.append(run_id)
    splits = _splits(session)
    first = {split.root for split in splits if not asked.isdisjoint(split.members)}
    versions = _with_descendants(session, runs, came_from, splits, first)
    topics = {topic for split in splits for topic, ids in split.examples.items() if not asked.isdisjoint(ids)}
    return Learned(versions, tuple(sorted(under_way)), tuple(sorted(topics)))


def _splits(session: Session) -> list[Split]:
    kind, state = RouteProposalRow.kind == ProposalKind.SPLIT.value, ProposalState.APPLIED.value
    found = []
    for row in session.scalars(select(RouteProposalRow).where(kind, RouteProposalRow.state == state)):
        facts = row.facts
        own = {facts.get("name"): facts.get("route")}  # an admin may have named the route otherwise
        examples = {str(own.get(topic, topic)): frozenset(ids) for topic, ids in facts.get("examples", {}).items()}
        members = frozenset(facts.get("members", ()))
        found.append(Split(str(facts.get("version")), str(facts.get("draft")), row.at, members, examples))
    return found


def _with_descendants(
    session: Session, runs: set[str], came_from: dict[str | None, str | None], splits: list[Split], first: set[str]
) -> tuple[str, ...]:
    """Return the versions of these runs, those that are ``first``, and all descendants of either.

    The version that a split started from is not recorded: it counts as a child of all versions its draft had by then.
    """
    columns = (
        VersionRow.id, VersionRow.parent, VersionRow.run_id, VersionRow.draft, VersionRow.created_at,
        VersionRow.evidence[HEIR_OF].as_string(),
    )  # fmt: skip
    children: dict[str, list[str]] = defaultdict(list)
    order, todo = [], list(first)
    rows = session.execute(select(*columns).order_by(VersionRow.draft, VersionRow.number))
    for version, parent, run_id, draft, made, origin in rows:
        order.append(version)
        children[version] += [split.root for split in splits if split.draft == draft and made <= split.at]
        for source in {parent, came_from.get(run_id), origin}:
            if source is not None:
                children[source].append(version)
        if run_id in runs:
            todo.append(version)
    found: set[str] = set()
    while todo:
        version = todo.pop()
        if version not in found:
            found.add(version)
            todo += children[version]
    return tuple(version for version in order if version in found)


def note_material(session: Session, run: RunRow, replayed: Sequence[str]) -> None:
    """Record what else a run learns from, and the tenants of all its requests; call it before training begins."""
    run.replayed = sorted({*run.replayed, *replayed})
    run.tenants = sorted({*run.tenants, *tenants_of(session, [*run.request_ids, *replayed])})


def tenants_of(session: Session, request_ids: Sequence[str]) -> set[str]:
    """Return the tenants of these requests."""
    found: set[str] = set()
    for some in chunks(request_ids):
        found.update(session.scalars(select(SampleRow.tenant).where(SampleRow.request_id.in_(some)).distinct()))
    return found


def taught_by(session: Session, run_ids: Sequence[str]) -> tuple[dict[str, tuple[int, int]], int]:
    """Return, by route, how many requests these runs claimed or replayed and of how many tenants they are; and how many
    of them are no longer kept, so that their routes are not known."""
    asked: set[str] = set()
    for claimed, replayed in session.execute(select(RunRow.request_ids, RunRow.replayed).where(RunRow.id.in_(run_ids))):
        asked.update(claimed, replayed)
    found: dict[str, list[str]] = defaultdict(list)
    for ids in chunks(sorted(asked)):
        query = select(SampleRow.route, SampleRow.tenant).where(SampleRow.request_id.in_(ids))
        for route, tenant in session.execute(query):
            found[route].append(tenant)
    domains = {route: (len(of), len(set(of))) for route, of in sorted(found.items())}
    return domains, len(asked) - sum(map(len, found.values()))
