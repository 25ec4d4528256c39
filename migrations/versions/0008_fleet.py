"""Serving processes that can be told from dead ones, and versions that one of them tries before the others."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

INT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "workers",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("pid", INT, nullable=False),
        sa.Column("url", sa.String(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("heartbeat_at", sa.Double(), nullable=False),
        sa.Column("gone_at", sa.Double(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("drains", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("running", INT, nullable=False),
        sa.Column("waiting", INT, nullable=False),
        sa.Column("rate", sa.Double(), nullable=False),
        sa.Column("drafts", sa.JSON(), nullable=False),
        sa.Column("trouble", sa.String()),
        sa.PrimaryKeyConstraint("id", name="pk_workers"),
    )
    op.create_index("ix_workers_gone_at", "workers", ["gone_at"])
    op.create_table(
        "canaries",
        sa.Column("version", sa.String(), nullable=False),
        sa.Column("draft", sa.String(), nullable=False),
        sa.Column("base", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("worker", sa.String()),
        sa.Column("claims", INT, nullable=False),
        sa.Column("looks", INT, nullable=False),
        sa.Column("began_at", sa.Double(), nullable=False),
        sa.Column("settled_at", sa.Double()),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("version", name="pk_canaries"),
        sa.ForeignKeyConstraint(["version"], ["draft_versions.id"], name="fk_canaries_version"),
        sa.ForeignKeyConstraint(["draft"], ["drafts.name"], name="fk_canaries_draft"),
        sa.ForeignKeyConstraint(["base"], ["draft_versions.id"], name="fk_canaries_base"),
    )
    op.create_index("ix_canaries_draft", "canaries", ["draft"])


def downgrade() -> None:
    op.drop_table("canaries")
    op.drop_table("workers")
