"""What retention goes by, what tenants allow, what runs learned from, the trail of admins' changes to what is kept."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

INT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

SAMPLES = ("prompt_hash", "divergence")
RUNS = ("replayed", "tenants")


def upgrade() -> None:
    """Columns without a default, or with a constant one: PostgreSQL adds them without writing the table anew."""
    op.add_column("sample_requests", sa.Column("prompt_hash", INT))
    op.add_column("sample_requests", sa.Column("divergence", sa.Double()))
    for name in RUNS:
        op.add_column("training_runs", sa.Column(name, sa.JSON(), server_default=sa.text("'[]'"), nullable=False))
    _tenants()
    _changes()


def _tenants() -> None:
    op.create_table(
        "tenants",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("learn", sa.Boolean(), server_default=sa.true(), nullable=False),
        sa.Column("share", sa.Boolean(), server_default=sa.true(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_tenants"),
    )


def _changes() -> None:
    op.create_table(
        "admin_changes",
        sa.Column("id", INT, autoincrement=True, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("who", sa.String(), nullable=False),
        sa.Column("action", sa.String(), nullable=False),
        sa.Column("subject", sa.String()),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_admin_changes"),
    )
    op.create_index("ix_admin_changes_subject", "admin_changes", ["subject"])


def downgrade() -> None:
    op.drop_table("admin_changes")
    op.drop_table("tenants")
    for name in RUNS:
        op.drop_column("training_runs", name)
    for name in SAMPLES:
        op.drop_column("sample_requests", name)
