"""Which draft versions learned from which requests: by what each run claimed and replayed, and by descent.

A version learned from a request if its run did, or if the weights that it started from had.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from storage.records import RunState
from storage.sample_index import chunks
from storage.tables import RunRow, SampleRow, VersionRow

STARTED_FROM = "started_from"
"""In a run's result: the version whose weights it went on from, where that is not its parent."""


@dataclass(frozen=True, slots=True)
class Learned:
    """Who learned from some requests."""

    versions: tuple[str, ...]
    """By draft and number: of the runs that had the requests, and all that descend from them."""
    under_way: tuple[str, ...]
    """Runs that have the requests and have not ended: what they will make learned from them too."""


def learned_from(session: Session, request_ids: Sequence[str], tenant: str | None = None) -> Learned:
    """Versions and runs that learned from any of these requests, or from any of the tenant's."""
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
    return Learned(_with_descendants(session, runs, came_from), tuple(sorted(under_way)))


def _with_descendants(session: Session, runs: set[str], came_from: dict[str | None, str | None]) -> tuple[str, ...]:
    columns = VersionRow.id, VersionRow.parent, VersionRow.run_id
    children: dict[str, list[str]] = defaultdict(list)
    order, todo = [], []
    for version, parent, run_id in session.execute(select(*columns).order_by(VersionRow.draft, VersionRow.number)):
        order.append(version)
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
            todo += children[version]
    return tuple(version for version in order if version in found)


def note_material(session: Session, run: RunRow, replayed: Sequence[str]) -> None:
    """Write down what else a run learns from, and whose all of it is; call it before training begins."""
    run.replayed = sorted({*run.replayed, *replayed})
    run.tenants = sorted({*run.tenants, *tenants_of(session, [*run.request_ids, *replayed])})


def tenants_of(session: Session, request_ids: Sequence[str]) -> set[str]:
    """Whose requests these are."""
    found: set[str] = set()
    for some in chunks(request_ids):
        found.update(session.scalars(select(SampleRow.tenant).where(SampleRow.request_id.in_(some)).distinct()))
    return found
