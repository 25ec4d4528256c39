"""The lineage of learning: which draft versions learned from which requests, through runs and by descent.

A version learned from a request if its run did, or if the weights that it started from did. Versions of two
drafts or lines that have the same weights, forks and heirs of one another, learned the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from storage.records import RunState
from storage.routes.proposals import ProposalKind, ProposalState
from storage.sql.database import chunks
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
    open_splits: tuple[int, ...] = ()
    """Proposals that wait with a draft that learned from them."""


class Material(NamedTuple):
    """What something was made of."""

    request_ids: frozenset[str]
    tenants: frozenset[str]
    """Whose requests they are, for when they are no longer kept."""

    def has(self, asked: set[str], tenant: str | None) -> bool:
        """Return whether any of these requests is among it, or one of the tenant's."""
        return tenant in self.tenants or not asked.isdisjoint(self.request_ids)


@dataclass(frozen=True, slots=True)
class Split:
    """A draft created by a proposal to split a route: trained without a run in the ledger."""

    id: int
    root: str
    """Its number 0 once it was applied, the version that it goes on from before."""
    draft: str
    """The draft from one of whose versions it was trained."""
    at: float
    members: Material
    """Requests that it was trained on."""
    examples: dict[str, Material]
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
    splits = _splits(session, ProposalState.APPLIED)
    first = {split.root for split in splits if split.members.has(asked, tenant)}
    versions = _with_descendants(session, runs, came_from, splits, first)
    topics = {topic for split in splits for topic, prompts in split.examples.items() if prompts.has(asked, tenant)}
    waiting = tuple(
        split.id for split in _splits(session, ProposalState.OPEN)
        if split.root in versions or split.members.has(asked, tenant)
        or (tenant and not split.members.tenants)  # an older release did not note them
    )  # fmt: skip
    return Learned(versions, tuple(sorted(under_way)), tuple(sorted(topics)), waiting)


def _splits(session: Session, state: ProposalState) -> list[Split]:
    kind = RouteProposalRow.kind == ProposalKind.SPLIT.value
    found = []
    for row in session.scalars(select(RouteProposalRow).where(kind, RouteProposalRow.state == state.value)):
        facts = row.facts
        own = {facts.get("name"): facts.get("route")}  # an admin may have named the route otherwise
        whose = facts.get("example_tenants", {})
        examples = {
            str(own.get(topic, topic)): Material(frozenset(ids), frozenset(whose.get(topic, ())))
            for topic, ids in facts.get("examples", {}).items()
        }
        members = Material(frozenset(facts.get("members", ())), frozenset(facts.get("tenants", ())))
        found.append(Split(row.id, str(facts.get("version")), str(facts.get("draft")), row.at, members, examples))
    return found


def _with_descendants(
    session: Session, runs: set[str], came_from: dict[str | None, str | None], splits: list[Split], first: set[str]
) -> tuple[str, ...]:
    """Return the versions of these runs, those that are ``first``, and all descendants of either.

    The version that a split started from is not recorded: it counts as a child of all versions its draft had by then.
    """
    columns = (
        VersionRow.id, VersionRow.parent, VersionRow.run_id, VersionRow.draft, VersionRow.created_at, VersionRow.digest,
    )  # fmt: skip
    children: dict[str, list[str]] = defaultdict(list)
    alike: dict[str, list[tuple[str, str]]] = defaultdict(list)
    known, todo = dict[str, tuple[str, str]](), list(first)
    rows = session.execute(select(*columns).order_by(VersionRow.draft, VersionRow.number))
    for version, parent, run_id, draft, made, digest in rows:
        known[version] = draft, digest
        alike[digest].append((draft, version))
        children[version] += [split.root for split in splits if split.draft == draft and made <= split.at]
        for source in {parent, came_from.get(run_id)}:
            if source is not None:
                children[source].append(version)
        if run_id in runs:
            todo.append(version)
    found: set[str] = set()
    while todo:
        version = todo.pop()
        if version not in found:
            found.add(version)
            own, digest = known.get(version, ("", ""))
            todo += children[version] + [other for draft, other in alike[digest] if draft != own]
    return tuple(version for version in known if version in found)


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
