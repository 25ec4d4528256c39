"""The SQL tables. What a row means outside SQL is in :mod:`storage.records`; times are Unix seconds.

No tokens and no prompts of traffic are stored here: those are in segments only, so purging a segment purges them.
The migration writes the same schema by hand; a test compares the two.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, ClassVar, TypeVar

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
R = TypeVar("R")

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


def record_of(record: type[R], row: Base, /, **others: Any) -> R:
    """Return a row as a record with fields of the same names; ``others`` are those that mean more than the column."""
    names = (each.name for each in fields(record) if each.name not in others)  # type: ignore[arg-type]
    return record(**{name: getattr(row, name) for name in names}, **others)


def table_of(row: type[Base]) -> Table:
    """Return a row class's table, for bulk inserts: without ORM objects they take half the time."""
    return Base.metadata.tables[row.__tablename__]


class TargetRow(Base):
    """A target that served, by the digest of its weights, tokenizer and generation settings."""

    __tablename__ = "targets"
    digest: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    first_seen: Mapped[float]
    served_at: Mapped[float]
    """When a process began to serve it last."""
    predecessor: Mapped[str | None]
    """The target that it succeeds, see :mod:`storage.versions.targets`."""
    facts: Mapped[Facts] = mapped_column(server_default=text("'{}'"))
    """Its ``architecture`` and the digest of its ``vocabulary``, where they are known; ``divergence``: by an earlier
    target, by route, how far its distributions are from that one's."""


class DraftRow(Base):
    """A line of a draft and its current version. Locking this row serialises whatever changes the line."""

    __tablename__ = "drafts"
    name: Mapped[str] = mapped_column(primary_key=True)
    current_version: Mapped[str | None]
    created_at: Mapped[float]
    options: Mapped[Facts] = mapped_column(server_default=text("'{}'"))
    """The draft's own overrides of ``[learn]``, see :mod:`storage.versions.draft_choices`."""
    target: Mapped[str | None]
    """The target that the line is about, see :mod:`storage.versions.targets`."""
    hold: Mapped[Facts] = mapped_column(server_default=text("'{}'"))
    """A person's decision that nothing replaces, see :mod:`storage.versions.draft_choices`."""
    previous_version: Mapped[str | None]
    """What was current before."""


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
    bytes: Mapped[int | None]
    """Size of the files that servers read; None where a release before 0014 wrote them."""
    served_at: Mapped[float | None]
    deleted_at: Mapped[float | None]
    has_master: Mapped[bool] = mapped_column(server_default=false())
    """Whether float32 weights lie beside those that are served, see :mod:`storage.versions.weights`."""


class VersionAliasRow(Base):
    """A version's name of one's own, see :mod:`storage.versions.draft_choices`."""

    __tablename__ = "version_aliases"
    draft: Mapped[str] = mapped_column(ForeignKey("drafts.name"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    version: Mapped[str] = mapped_column(ForeignKey("draft_versions.id"))


class ServingRow(Base):
    """The version of a draft that a server drafts with."""

    __tablename__ = "serving"
    worker: Mapped[str] = mapped_column(primary_key=True)
    draft: Mapped[str] = mapped_column(ForeignKey("drafts.name"), primary_key=True)
    version: Mapped[str] = mapped_column(ForeignKey("draft_versions.id"))
    since: Mapped[float]


class ServerRow(Base):
    """A serving process; see :mod:`storage.access.processes`. Its name is that in ``serving`` and in the counters."""

    __tablename__ = "workers"
    id: Mapped[str] = mapped_column(primary_key=True)
    host: Mapped[str]
    pid: Mapped[int]
    url: Mapped[str]
    started_at: Mapped[float]
    heartbeat_at: Mapped[float]
    gone_at: Mapped[float] = mapped_column(index=True)
    """Time until which the process is presumed alive."""
    state: Mapped[str]
    drains: Mapped[bool] = mapped_column(server_default=false())
    """Whether a drain was requested."""
    running: Mapped[int]
    waiting: Mapped[int]
    rate: Mapped[float]
    drafts: Mapped[Facts]
    trouble: Mapped[str | None]


class TrainerRow(Base):
    """A training process; see :mod:`storage.access.processes`. Its name is that in leases."""

    __tablename__ = "trainers"
    id: Mapped[str] = mapped_column(primary_key=True)
    host: Mapped[str]
    pid: Mapped[int]
    started_at: Mapped[float]
    heartbeat_at: Mapped[float]
    gone_at: Mapped[float] = mapped_column(index=True)
    doing: Mapped[Facts]
    paused: Mapped[bool]
    cancels: Mapped[bool]


class EngineRow(Base):
    """A serving engine that is not ours; see :mod:`storage.access.engines`."""

    __tablename__ = "engines"
    name: Mapped[str] = mapped_column(primary_key=True)
    url: Mapped[str] = mapped_column(unique=True)
    draft: Mapped[str] = mapped_column(ForeignKey("drafts.name"))
    added_at: Mapped[float]
    facts: Mapped[Facts]
    holder: Mapped[str | None]
    lease_until: Mapped[float]


class CanaryRow(Base):
    """A version that one worker serves before all others do, and the outcome; see :mod:`storage.versions.canaries`."""

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
    """A route; every change of routes locks the default one's row, so that changes happen one after another."""

    __tablename__ = "routes"
    name: Mapped[str] = mapped_column(primary_key=True)
    draft: Mapped[str] = mapped_column(ForeignKey("drafts.name"))
    matches: Mapped[Facts]
    candidates: Mapped[Ids] = mapped_column(server_default=text("'[]'"))
    created_at: Mapped[float | None]
    """Time of creation; None for routes that are older than this column."""


class RoutePinRow(Base):
    """A tenant (``*`` for every one) whose requests take a route, whatever they ask for."""

    __tablename__ = "route_pins"
    tenant: Mapped[str] = mapped_column(primary_key=True)
    route: Mapped[str] = mapped_column(ForeignKey("routes.name"))


class RouteAliasRow(Base):
    """A route's former name, which still leads to it."""

    __tablename__ = "route_aliases"
    name: Mapped[str] = mapped_column(primary_key=True)
    route: Mapped[str] = mapped_column(ForeignKey("routes.name"))


class RouteExampleRow(Base):
    """A text that an admin gave as an example of a topic: the only prompts in SQL."""

    __tablename__ = "route_examples"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    at: Mapped[float]
    topic: Mapped[str] = mapped_column(index=True)
    text: Mapped[str]
    hash: Mapped[str] = mapped_column(unique=True)


class RouteBackgroundRow(Base):
    """Hashed features of a prompt of the traffic that stands for what belongs to no taught topic."""

    __tablename__ = "route_background"
    request_id: Mapped[str] = mapped_column(
        ForeignKey("sample_requests.request_id", ondelete="CASCADE"), primary_key=True
    )
    features: Mapped[bytes]
    """uint32, little-endian, with repeats."""


class RouteProposalRow(Base):
    """A proposed change of routes and its state."""

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
    """Tenants whose requests it learned from, known even when the samples are gone."""
    settings: Mapped[Facts]
    finished_at: Mapped[float | None]
    version: Mapped[str | None]
    result: Mapped[Facts]


class LeaseRow(Base):
    """The run that may train a draft now; the run's row has the holder and the lease's end."""

    __tablename__ = "training_leases"
    draft: Mapped[str] = mapped_column(ForeignKey("drafts.name"), primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("training_runs.id"))


class SegmentRow(Base):
    """One Parquet file; ``path`` is relative to the segments directory."""

    __tablename__ = "segments"
    id: Mapped[str] = mapped_column(primary_key=True)
    path: Mapped[str]
    created_at: Mapped[float]
    requests: Mapped[int]
    positions: Mapped[int]
    bytes: Mapped[int]
    digest: Mapped[str | None]
    """SHA-256 of the file, in hex; None where an osd before it wrote the segment."""


class SampleRow(Base):
    """The place of one request's samples, and whether a training run has taken them."""

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
    hidden_bytes: Mapped[int] = mapped_column(server_default=text("0"))
    """How many of them are the target's hidden states; 0 where those were not kept."""
    holdout: Mapped[bool] = mapped_column(server_default=false())
    claimed_by: Mapped[str | None] = mapped_column(ForeignKey("training_runs.id"), index=True)
    prompt_hash: Mapped[int | None]
    """Equal for equal prompts; None where a release before 0003 stored the request."""
    divergence: Mapped[float | None]
    """Estimated distance of the draft from the target, see :func:`storage.replay.sample_index.divergences`."""
    failures: Mapped[int] = mapped_column(server_default=text("0"))
    """Number of failed training runs with it."""
    failed_in: Mapped[str | None]
    """The newest failed run."""
    failed_at: Mapped[float | None]
    """Time of the first failed run."""
    target: Mapped[str | None]
    """Digest of the target that answered."""
    set_aside: Mapped[str | None]
    """Reason why no run takes it any more; None where it may be taken."""


class TenantRow(Base):
    """A tenant's permissions; a tenant without a row has those of the settings."""

    __tablename__ = "tenants"
    name: Mapped[str] = mapped_column(primary_key=True)
    learn: Mapped[bool] = mapped_column(server_default=true())
    share: Mapped[bool] = mapped_column(server_default=true())
