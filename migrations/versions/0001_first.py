"""The first schema: drafts and their versions, routes, sample segments, training runs, outcomes."""

import time

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

INT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    _drafts()
    _training()
    _samples()
    _outcomes()
    _first_rows()


def _drafts() -> None:
    op.create_table(
        "drafts",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("current_version", sa.String()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_drafts"),
    )
    op.create_table(
        "draft_versions",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("draft", sa.String(), nullable=False),
        sa.Column("number", INT, nullable=False),
        sa.Column("parent", sa.String()),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("path", sa.String(), nullable=False),
        sa.Column("run_id", sa.String()),
        sa.Column("evidence", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_draft_versions"),
        sa.ForeignKeyConstraint(["draft"], ["drafts.name"], name="fk_draft_versions_draft"),
        sa.ForeignKeyConstraint(["parent"], ["draft_versions.id"], name="fk_draft_versions_parent"),
        sa.UniqueConstraint("draft", "number", name="uq_draft_versions_draft_number"),
    )
    op.create_table(
        "serving",
        sa.Column("worker", sa.String(), nullable=False),
        sa.Column("version", sa.String(), nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("worker", name="pk_serving"),
        sa.ForeignKeyConstraint(["version"], ["draft_versions.id"], name="fk_serving_version"),
    )
    op.create_table(
        "routes",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("draft", sa.String(), nullable=False),
        sa.Column("matches", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_routes"),
        sa.ForeignKeyConstraint(["draft"], ["drafts.name"], name="fk_routes_draft"),
    )


def _training() -> None:
    op.create_table(
        "training_runs",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("draft", sa.String(), nullable=False),
        sa.Column("holder", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("heartbeat_at", sa.Double(), nullable=False),
        sa.Column("lease_until", sa.Double(), nullable=False),
        sa.Column("parent", sa.String(), nullable=False),
        sa.Column("request_ids", sa.JSON(), nullable=False),
        sa.Column("settings", sa.JSON(), nullable=False),
        sa.Column("finished_at", sa.Double()),
        sa.Column("version", sa.String()),
        sa.Column("result", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_training_runs"),
        sa.ForeignKeyConstraint(["draft"], ["drafts.name"], name="fk_training_runs_draft"),
        sa.ForeignKeyConstraint(["parent"], ["draft_versions.id"], name="fk_training_runs_parent"),
    )
    op.create_index("ix_training_runs_draft_started_at", "training_runs", ["draft", "started_at"])
    op.create_table(
        "training_leases",
        sa.Column("draft", sa.String(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("draft", name="pk_training_leases"),
        sa.ForeignKeyConstraint(["draft"], ["drafts.name"], name="fk_training_leases_draft"),
        sa.ForeignKeyConstraint(["run_id"], ["training_runs.id"], name="fk_training_leases_run_id"),
    )


def _samples() -> None:
    op.create_table(
        "segments",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("path", sa.String(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("requests", INT, nullable=False),
        sa.Column("positions", INT, nullable=False),
        sa.Column("bytes", INT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_segments"),
    )
    op.create_table(
        "sample_requests",
        sa.Column("request_id", sa.String(), nullable=False),
        sa.Column("segment_id", sa.String(), nullable=False),
        sa.Column("row", INT, nullable=False),
        sa.Column("route", sa.String(), nullable=False),
        sa.Column("tenant", sa.String(), nullable=False),
        sa.Column("draft_version", sa.String(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("prompt_len", INT, nullable=False),
        sa.Column("tokens", INT, nullable=False),
        sa.Column("positions", INT, nullable=False),
        sa.Column("bytes", INT, nullable=False),
        sa.Column("holdout", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("claimed_by", sa.String()),
        sa.PrimaryKeyConstraint("request_id", name="pk_sample_requests"),
        sa.ForeignKeyConstraint(["segment_id"], ["segments.id"], name="fk_sample_requests_segment_id"),
        sa.ForeignKeyConstraint(["claimed_by"], ["training_runs.id"], name="fk_sample_requests_claimed_by"),
    )
    for columns in (
        ["segment_id"],
        ["tenant"],
        ["created_at"],
        ["claimed_by"],
        ["route", "holdout", "claimed_by", "created_at"],
    ):
        op.create_index(f"ix_sample_requests_{'_'.join(columns)}", "sample_requests", columns)


def _counters() -> list[sa.Column]:
    whole = ("requests", "rounds", "drafted", "accepted", "rejections", "emitted", "prompt_tokens")
    milliseconds = [sa.Column(name, sa.Double(), nullable=False) for name in ("draft_ms", "verify_ms")]
    return [sa.Column(name, INT, nullable=False) for name in whole] + milliseconds


def _outcomes() -> None:
    names = ("route", "draft_version", "controller", "tenant", "worker")
    op.create_table(
        "outcome_counters",
        sa.Column("span", INT, nullable=False, autoincrement=False),
        sa.Column("start", INT, nullable=False, autoincrement=False),
        *[sa.Column(name, sa.String(), nullable=False) for name in names],
        *_counters(),
        sa.PrimaryKeyConstraint("span", "start", *names, name="pk_outcome_counters"),
    )
    op.create_table(
        "outcome_log",
        sa.Column("id", INT, autoincrement=True, nullable=False),
        sa.Column("request_id", sa.String(), nullable=False),
        *[sa.Column(name, sa.String(), nullable=False) for name in names],
        sa.Column("finished_at", sa.Double(), nullable=False),
        *_counters(),
        sa.PrimaryKeyConstraint("id", name="pk_outcome_log"),
    )
    for columns in (["request_id"], ["tenant"], ["draft_version", "id"]):
        op.create_index(f"ix_outcome_log_{'_'.join(columns)}", "outcome_log", columns)


def _first_rows() -> None:
    """The route and the draft that everything uses until somebody says otherwise."""
    drafts = sa.table("drafts", sa.column("name", sa.String()), sa.column("created_at", sa.Double()))
    columns = sa.column("name", sa.String()), sa.column("draft", sa.String()), sa.column("matches", sa.JSON())
    routes = sa.table("routes", *columns)
    op.bulk_insert(drafts, [{"name": "default", "created_at": time.time()}])
    op.bulk_insert(routes, [{"name": "default", "draft": "default", "matches": {}}])


def downgrade() -> None:
    for table in (
        "outcome_log",
        "outcome_counters",
        "sample_requests",
        "segments",
        "training_leases",
        "training_runs",
        "routes",
        "serving",
        "draft_versions",
        "drafts",
    ):
        op.drop_table(table)
