"""The schema: every table, the default route and the default draft. Stores of earlier schemas are not read."""

import time
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = None
branch_labels = None
depends_on = None

SCHEMA = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)
WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TEXT, REAL, FACTS, FLAG, BLOB = sa.String(), sa.Double(), sa.JSON(), sa.Boolean(), sa.LargeBinary()
EMPTY_TABLE, EMPTY_LIST = sa.text("'{}'"), sa.text("'[]'")


def upgrade() -> None:
    connection = op.get_bind()
    SCHEMA.create_all(connection, checkfirst=False)
    at = time.time()
    tables = SCHEMA.tables
    connection.execute(tables["drafts"].insert().values(name="default", created_at=at))
    connection.execute(tables["routes"].insert().values(name="default", draft="default", matches={}, created_at=at))


def downgrade() -> None:
    SCHEMA.drop_all(op.get_bind())


def table(name: str, *parts: Any) -> None:
    """Add a table to the schema."""
    sa.Table(name, SCHEMA, *parts)


def columns(kind: Any, *names: str, nullable: bool = False, **options: Any) -> list[sa.Column]:
    """Return columns of one kind."""
    return [sa.Column(name, kind, nullable=nullable, **options) for name in names]


def refers(name: str, other: str, *, nullable: bool = False, ondelete: str | None = None, **options: Any) -> sa.Column:
    """Return a column that refers to another table's."""
    return sa.Column(name, TEXT, sa.ForeignKey(other, ondelete=ondelete), nullable=nullable, **options)


table(
    "targets",
    *columns(TEXT, "digest", primary_key=True),
    *columns(TEXT, "name"),
    *columns(REAL, "first_seen", "served_at"),
)
table(
    "drafts",
    *columns(TEXT, "name", primary_key=True),
    *columns(TEXT, "current_version", "target", "previous_version", nullable=True),
    *columns(REAL, "created_at"),
    *columns(FACTS, "options", "hold", server_default=EMPTY_TABLE),
)
table(
    "draft_versions",
    *columns(TEXT, "id", primary_key=True),
    refers("draft", "drafts.name"),
    *columns(WHOLE, "number"),
    refers("parent", "draft_versions.id", nullable=True),
    *columns(TEXT, "digest", "kind", "state", "path"),
    *columns(REAL, "created_at"),
    *columns(TEXT, "run_id", nullable=True),
    *columns(FACTS, "evidence"),
    *columns(WHOLE, "bytes", nullable=True),
    *columns(REAL, "served_at", "deleted_at", nullable=True),
    *columns(FLAG, "has_master", server_default=sa.false()),
    sa.UniqueConstraint("draft", "number"),
)
table(
    "version_aliases",
    refers("draft", "drafts.name", primary_key=True),
    *columns(TEXT, "name", primary_key=True),
    refers("version", "draft_versions.id"),
)
table(
    "serving",
    *columns(TEXT, "worker", primary_key=True),
    refers("draft", "drafts.name", primary_key=True),
    refers("version", "draft_versions.id"),
    *columns(REAL, "since"),
)
table(
    "workers",
    *columns(TEXT, "id", primary_key=True),
    *columns(TEXT, "host", "url", "state"),
    *columns(WHOLE, "pid", "running", "waiting"),
    *columns(REAL, "started_at", "heartbeat_at", "rate"),
    *columns(REAL, "gone_at", index=True),
    *columns(FLAG, "drains", server_default=sa.false()),
    *columns(FACTS, "drafts"),
    *columns(TEXT, "trouble", nullable=True),
)
table(
    "trainers",
    *columns(TEXT, "id", primary_key=True),
    *columns(TEXT, "host"),
    *columns(WHOLE, "pid"),
    *columns(REAL, "started_at", "heartbeat_at"),
    *columns(REAL, "gone_at", index=True),
    *columns(FACTS, "doing"),
    *columns(FLAG, "paused", "cancels"),
)
table(
    "engines",
    *columns(TEXT, "name", primary_key=True),
    *columns(TEXT, "url", unique=True),
    refers("draft", "drafts.name"),
    *columns(REAL, "added_at", "lease_until"),
    *columns(FACTS, "facts"),
    *columns(TEXT, "holder", nullable=True),
)
table(
    "canaries",
    refers("version", "draft_versions.id", primary_key=True),
    refers("draft", "drafts.name", index=True),
    refers("base", "draft_versions.id"),
    *columns(TEXT, "state"),
    *columns(TEXT, "worker", nullable=True),
    *columns(WHOLE, "claims", "looks"),
    *columns(REAL, "began_at"),
    *columns(REAL, "settled_at", nullable=True),
    *columns(FACTS, "facts"),
)
table(
    "routes",
    *columns(TEXT, "name", primary_key=True),
    refers("draft", "drafts.name"),
    *columns(FACTS, "matches"),
    *columns(FACTS, "candidates", server_default=EMPTY_LIST),
    *columns(REAL, "created_at", nullable=True),
)
table(
    "route_pins",
    *columns(TEXT, "tenant", primary_key=True),
    refers("route", "routes.name"),
)
table(
    "route_aliases",
    *columns(TEXT, "name", primary_key=True),
    refers("route", "routes.name"),
)
table(
    "route_examples",
    *columns(WHOLE, "id", primary_key=True),
    *columns(REAL, "at"),
    *columns(TEXT, "topic", index=True),
    *columns(TEXT, "text"),
    *columns(TEXT, "hash", unique=True),
)
table(
    "route_background",
    refers("request_id", "sample_requests.request_id", primary_key=True, ondelete="CASCADE"),
    *columns(BLOB, "features"),
)
table(
    "route_proposals",
    *columns(WHOLE, "id", primary_key=True),
    *columns(REAL, "at"),
    *columns(TEXT, "kind", "state"),
    *columns(FACTS, "facts"),
)
table(
    "training_runs",
    *columns(TEXT, "id", primary_key=True),
    refers("draft", "drafts.name"),
    *columns(TEXT, "holder", "state"),
    *columns(REAL, "started_at", "heartbeat_at", "lease_until"),
    refers("parent", "draft_versions.id"),
    *columns(FACTS, "request_ids", "settings", "result"),
    *columns(FACTS, "replayed", "tenants", server_default=EMPTY_LIST),
    *columns(REAL, "finished_at", nullable=True),
    *columns(TEXT, "version", nullable=True),
    sa.Index(None, "draft", "started_at"),
)
table(
    "training_leases",
    refers("draft", "drafts.name", primary_key=True),
    refers("run_id", "training_runs.id"),
)
table(
    "segments",
    *columns(TEXT, "id", primary_key=True),
    *columns(TEXT, "path"),
    *columns(REAL, "created_at"),
    *columns(WHOLE, "requests", "positions", "bytes"),
    *columns(TEXT, "digest", nullable=True),
)
table(
    "sample_requests",
    *columns(TEXT, "request_id", primary_key=True),
    refers("segment_id", "segments.id", index=True),
    *columns(WHOLE, "row", "prompt_len", "tokens", "positions", "bytes"),
    *columns(TEXT, "route", "draft_version"),
    *columns(TEXT, "tenant", index=True),
    *columns(REAL, "created_at", index=True),
    *columns(WHOLE, "hidden_bytes", "failures", server_default=sa.text("0")),
    *columns(FLAG, "holdout", server_default=sa.false()),
    refers("claimed_by", "training_runs.id", nullable=True, index=True),
    *columns(WHOLE, "prompt_hash", nullable=True),
    *columns(REAL, "divergence", "failed_at", nullable=True),
    *columns(TEXT, "failed_in", "target", "set_aside", nullable=True),
    sa.Index(None, "draft_version", "created_at"),
    sa.Index(None, "route", "holdout", "claimed_by", "created_at"),
)
table(
    "tenants",
    *columns(TEXT, "name", primary_key=True),
    *columns(FLAG, "learn", "share", server_default=sa.true()),
)
table(
    "audit",
    *columns(WHOLE, "id", primary_key=True),
    *columns(REAL, "at"),
    *columns(TEXT, "who", "origin"),
    *columns(TEXT, "action", index=True),
    *columns(TEXT, "subject", nullable=True, index=True),
    *columns(FACTS, "before", "after"),
)
table(
    "api_keys",
    *columns(TEXT, "id", primary_key=True),
    *columns(TEXT, "hash", unique=True),
    *columns(TEXT, "shown", "name", "tenant"),
    *columns(FACTS, "scopes"),
    *columns(WHOLE, "requests_per_minute", "tokens_per_minute", nullable=True),
    *columns(REAL, "created_at"),
    *columns(REAL, "expires_at", "revoked_at", nullable=True),
)
table(
    "outcome_counters",
    *columns(WHOLE, "span", "start", primary_key=True),
    *columns(TEXT, "route", "draft_version", "controller", "tenant", "worker", primary_key=True),
    *columns(WHOLE, "requests", "rounds", "drafted", "accepted", "rejections", "emitted", "prompt_tokens"),
    *columns(REAL, "draft_ms", "verify_ms"),
    sa.Index(None, "draft_version", "span", "start"),
)
table(
    "position_counters",
    *columns(WHOLE, "span", "start", primary_key=True),
    *columns(TEXT, "route", "draft_version", primary_key=True),
    *columns(WHOLE, "position", primary_key=True),
    *columns(WHOLE, "drafted", "accepted", "refused"),
)
table(
    "outcome_batches",
    *columns(TEXT, "id", primary_key=True),
    *columns(REAL, "at"),
)
table(
    "outcome_log",
    *columns(WHOLE, "id", primary_key=True),
    *columns(TEXT, "request_id", "tenant", index=True),
    *columns(TEXT, "route", "draft_version", "controller", "worker"),
    *columns(REAL, "finished_at", "draft_ms", "verify_ms"),
    *columns(WHOLE, "requests", "rounds", "drafted", "accepted", "rejections", "emitted", "prompt_tokens"),
    sa.Index(None, "draft_version", "id"),
)
