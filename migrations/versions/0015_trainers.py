"""Training processes that live."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "trainers",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("pid", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("heartbeat_at", sa.Double(), nullable=False),
        sa.Column("gone_at", sa.Double(), nullable=False),
        sa.Column("doing", sa.JSON(), nullable=False),
        sa.Column("paused", sa.Boolean(), nullable=False),
        sa.Column("cancels", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_trainers"),
    )
    op.create_index("ix_trainers_gone_at", "trainers", ["gone_at"])


def downgrade() -> None:
    op.drop_table("trainers")
