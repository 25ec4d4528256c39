"""The tables. What a row means outside SQL is in :mod:`storage.records`; times are Unix seconds.

No tokens and no prompts of traffic are kept here: those live in segments only, so purging a segment purges them.
Migrations write the same schema by hand; a test compares the two.
"""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import (
    JSON,
    BigInteger,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    UniqueConstraint,
    false,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.sql import true

Facts = dict[str, Any]
Ids = list[str]

NAMES = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}


class Base(DeclarativeBase):
    metadata = MetaData(naming_convention=NAMES)
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        int: BigInteger().with_variant(Integer, "sqlite"),  # SQLite numbers rows by itself only for INTEGER
        float: Double(),
        Facts: JSON(),
        Ids: JSON(),
    }


def table_of(row: type[Base]) -> Table:
    """For many rows at once: without objects an insert takes half the time."""
    return Base.metadata.tables[row.__tablename__]


class DraftRow(Base):
    """A draft, and which of its versions is current. Locking this row serialises whatever changes the draft."""

    __tablename__ = "drafts"
    name: Mapped[str] = mapped_column(primary_key=True)
    current_version: Mapped[str | None]
    created_at: Mapped[float]
    options: Mapped[Facts] = mapped_column(server_default=text("'{}'"))
    """Settings of ``[learn]`` that are this draft's own; see :mod:`storage.versions.options`."""


class VersionRow(Base):
    __tablename__ = "draft_versions"
    __table_args__ = (UniqueConstraint("draft", "number"),)
    id: Mapped[str] = mapped_column(primary_key=True)
    draft: Mapped[str] = mapped_column(ForeignKey("drafts.name"))
    number: Mapped[int]
    parent: Mapped[str | None] = mapped_column(ForeignKey("draft_versions.id"))
    digest: Mapped[str]
    kind: Mapped[str]
    state: Mapped[str]
    created_at: Mapped[float]
    path: Mapped[str]
    run_id: Mapped[str | None]
    evidence: Mapped[Facts]


class ServingRow(Base):
    """Which version of each of its drafts a server drafts with."""

    __tablename__ = "serving"
    worker: Mapped[str] = mapped_column(primary_key=True)
    draft: Mapped[str] = mapped_column(ForeignKey("drafts.name"), primary_key=True)
    version: Mapped[str] = mapped_column(ForeignKey("draft_versions.id"))
    since: Mapped[float]


class WorkerRow(Base):
    """A serving process; see :mod:`storage.access.workers`. Its name is that in ``serving`` and in the counters."""

    __tablename__ = "workers"
    id: Mapped[str] = mapped_column(primary_key=True)
    host: Mapped[str]
    pid: Mapped[int]
    url: Mapped[str]
    started_at: Mapped[float]
    heartbeat_at: Mapped[float]
    gone_at: Mapped[float] = mapped_column(index=True)
    """Until then it is believed to live."""
    state: Mapped[str]
    drains: Mapped[bool] = mapped_column(server_default=false())
    """Whether somebody wants it to drain."""
    running: Mapped[int]
    waiting: Mapped[int]
    rate: Mapped[float]
    drafts: Mapped[Facts]
    trouble: Mapped[str | None]


class CanaryRow(Base):
    """A version that one worker serves before all others do, and what came of it; see
    :mod:`storage.versions.canaries`."""

    __tablename__ = "canaries"
    version: Mapped[str] = mapped_column(ForeignKey("draft_versions.id"), primary_key=True)
    draft: Mapped[str] = mapped_column(ForeignKey("drafts.name"), index=True)
    base: Mapped[str] = mapped_column(ForeignKey("draft_versions.id"))
    state: Mapped[str]
    worker: Mapped[str | None]
    claims: Mapped[int]
    looks: Mapped[int]
    began_at: Mapped[float]
    settled_at: Mapped[float | None]
    facts: Mapped[Facts]


class RouteRow(Base):
    """A route; the default one's row is locked by whatever changes routes, so that changes come one after another."""

    __tablename__ = "routes"
    name: Mapped[str] = mapped_column(primary_key=True)
    draft: Mapped[str] = mapped_column(ForeignKey("drafts.name"))
    matches: Mapped[Facts]
    candidates: Mapped[Ids] = mapped_column(server_default=text("'[]'"))
    created_at: Mapped[float | None]
    """None for routes that were there before this was noted."""


class RouteChangeRow(Base):
    """The audit trail: who changed what, when, from what to what. The newest id is the revision that routers poll."""

    __tablename__ = "route_changes"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    at: Mapped[float]
    who: Mapped[str]
    action: Mapped[str]
    route: Mapped[str | None] = mapped_column(index=True)
    before: Mapped[Facts]
    after: Mapped[Facts]


class RoutePinRow(Base):
    """A tenant (``*`` for every one) whose requests take a route, whatever they say."""

    __tablename__ = "route_pins"
    tenant: Mapped[str] = mapped_column(primary_key=True)
    route: Mapped[str] = mapped_column(ForeignKey("routes.name"))


class RouteAliasRow(Base):
    """A route's former name, which goes on leading to it."""

    __tablename__ = "route_aliases"
    name: Mapped[str] = mapped_column(primary_key=True)
    route: Mapped[str] = mapped_column(ForeignKey("routes.name"))


class RouteExampleRow(Base):
    """A text that an admin gave as an example of a topic: the only prompts in SQL, kept because somebody said so."""

    __tablename__ = "route_examples"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    at: Mapped[float]
    topic: Mapped[str] = mapped_column(index=True)
    text: Mapped[str]
    hash: Mapped[str] = mapped_column(unique=True)


class RouteProposalRow(Base):
    """A change of routes that was found worth while in the traffic, and what became of it."""

    __tablename__ = "route_proposals"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    at: Mapped[float]
    kind: Mapped[str]
    state: Mapped[str]
    facts: Mapped[Facts]


class RunRow(Base):
    __tablename__ = "training_runs"
    __table_args__ = (Index(None, "draft", "started_at"),)
    id: Mapped[str] = mapped_column(primary_key=True)
    draft: Mapped[str] = mapped_column(ForeignKey("drafts.name"))
    holder: Mapped[str]
    state: Mapped[str]
    started_at: Mapped[float]
    heartbeat_at: Mapped[float]
    lease_until: Mapped[float]
    parent: Mapped[str] = mapped_column(ForeignKey("draft_versions.id"))
    request_ids: Mapped[Ids]
    replayed: Mapped[Ids] = mapped_column(server_default=text("'[]'"))
    """Requests of earlier runs that it learned from as well."""
    tenants: Mapped[Ids] = mapped_column(server_default=text("'[]'"))
    """Whose requests it learned from: known when the samples themselves are gone."""
    settings: Mapped[Facts]
    finished_at: Mapped[float | None]
    version: Mapped[str | None]
    result: Mapped[Facts]


class LeaseRow(Base):
    """The run that may train a draft now; holder and end of the lease stand in the run."""

    __tablename__ = "training_leases"
    draft: Mapped[str] = mapped_column(ForeignKey("drafts.name"), primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("training_runs.id"))


class SegmentRow(Base):
    """One Parquet file; ``path`` is below the segments directory."""

    __tablename__ = "segments"
    id: Mapped[str] = mapped_column(primary_key=True)
    path: Mapped[str]
    created_at: Mapped[float]
    requests: Mapped[int]
    positions: Mapped[int]
    bytes: Mapped[int]


class SampleRow(Base):
    """Where one request's samples are, and whether a training run has taken them."""

    __tablename__ = "sample_requests"
    __table_args__ = (
        Index(None, "route", "holdout", "claimed_by", "created_at"),
        Index(None, "draft_version", "created_at"),
    )
    request_id: Mapped[str] = mapped_column(primary_key=True)
    segment_id: Mapped[str] = mapped_column(ForeignKey("segments.id"), index=True)
    row: Mapped[int]
    route: Mapped[str]
    tenant: Mapped[str] = mapped_column(index=True)
    draft_version: Mapped[str]
    created_at: Mapped[float] = mapped_column(index=True)
    prompt_len: Mapped[int]
    tokens: Mapped[int]
    positions: Mapped[int]
    bytes: Mapped[int]
    holdout: Mapped[bool] = mapped_column(server_default=false())
    claimed_by: Mapped[str | None] = mapped_column(ForeignKey("training_runs.id"), index=True)
    prompt_hash: Mapped[int | None]
    """Equal for equal prompts; None where a release before 0003 kept the request."""
    divergence: Mapped[float | None]
    """How far the draft was from the target; see :func:`storage.replay.divergence.of_requests`."""
    failures: Mapped[int] = mapped_column(server_default=text("0"))
    """Training runs with it that failed."""
    failed_in: Mapped[str | None]
    """The newest of them."""
    failed_at: Mapped[float | None]
    """When the first of them did."""
    set_aside: Mapped[str | None]
    """Why no run takes it any more; None where it may be taken."""


class TenantRow(Base):
    """What a tenant allows; one that is not here allows what the settings say."""

    __tablename__ = "tenants"
    name: Mapped[str] = mapped_column(primary_key=True)
    learn: Mapped[bool] = mapped_column(server_default=true())
    share: Mapped[bool] = mapped_column(server_default=true())


class AdminChangeRow(Base):
    """The audit trail of what admins did: forgetting, purging, tenants, imports, exports, keys."""

    __tablename__ = "admin_changes"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    at: Mapped[float]
    who: Mapped[str]
    action: Mapped[str]
    subject: Mapped[str | None] = mapped_column(index=True)
    facts: Mapped[Facts]


class ApiKeyRow(Base):
    """A key of the server; see :mod:`storage.access.keys`. What ended stays, so that the trail can be read."""

    __tablename__ = "api_keys"
    id: Mapped[str] = mapped_column(primary_key=True)
    hash: Mapped[str] = mapped_column(unique=True)
    shown: Mapped[str]
    name: Mapped[str]
    tenant: Mapped[str]
    scopes: Mapped[Ids]
    requests_per_minute: Mapped[int | None]
    tokens_per_minute: Mapped[int | None]
    created_at: Mapped[float]
    expires_at: Mapped[float | None]
    revoked_at: Mapped[float | None]


class Counters:
    """What is summed of outcomes; the names are those of :class:`storage.records.Outcome`."""

    requests: Mapped[int]
    rounds: Mapped[int]
    drafted: Mapped[int]
    accepted: Mapped[int]
    rejections: Mapped[int]
    emitted: Mapped[int]
    prompt_tokens: Mapped[int]
    draft_ms: Mapped[float]
    verify_ms: Mapped[float]


COUNTS = tuple(Counters.__annotations__)


class CounterRow(Counters, Base):
    """Outcomes summed over ``span`` seconds (a minute, an hour, a day, a week) from ``start`` on."""

    __tablename__ = "outcome_counters"
    __table_args__ = (Index(None, "draft_version", "span", "start"),)
    span: Mapped[int] = mapped_column(primary_key=True)
    start: Mapped[int] = mapped_column(primary_key=True)
    route: Mapped[str] = mapped_column(primary_key=True)
    draft_version: Mapped[str] = mapped_column(primary_key=True)
    controller: Mapped[str] = mapped_column(primary_key=True)
    tenant: Mapped[str] = mapped_column(primary_key=True)
    worker: Mapped[str] = mapped_column(primary_key=True)


class PositionRow(Base):
    """Places in a draft, summed as :class:`CounterRow` is; see Outcome.positions. Servers share these rows."""

    __tablename__ = "position_counters"
    span: Mapped[int] = mapped_column(primary_key=True)
    start: Mapped[int] = mapped_column(primary_key=True)
    route: Mapped[str] = mapped_column(primary_key=True)
    draft_version: Mapped[str] = mapped_column(primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    drafted: Mapped[int]
    accepted: Mapped[int]
    refused: Mapped[int]


class OutcomeBatchRow(Base):
    """A batch of outcomes that was added, until the server that sent it knows so: it is not added a second time."""

    __tablename__ = "outcome_batches"
    id: Mapped[str] = mapped_column(primary_key=True)
    at: Mapped[float]


class OutcomeRow(Counters, Base):
    """The newest outcomes one by one; older ones are dropped as new ones come."""

    __tablename__ = "outcome_log"
    __table_args__ = (Index(None, "draft_version", "id"),)
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    request_id: Mapped[str] = mapped_column(index=True)
    route: Mapped[str]
    tenant: Mapped[str] = mapped_column(index=True)
    draft_version: Mapped[str]
    controller: Mapped[str]
    worker: Mapped[str]
    finished_at: Mapped[float]
