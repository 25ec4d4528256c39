"""Which batches of outcomes were added, and requests on which training failed."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

INT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

SAMPLES = ("failures", "failed_in", "failed_at", "set_aside")


def upgrade() -> None:
    """Columns without a default, or with a constant one: PostgreSQL adds them without writing the table anew."""
    op.create_table(
        "outcome_batches",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_outcome_batches"),
    )
    op.add_column("sample_requests", sa.Column("failures", INT, server_default=sa.text("0"), nullable=False))
    op.add_column("sample_requests", sa.Column("failed_in", sa.String()))
    op.add_column("sample_requests", sa.Column("failed_at", sa.Double()))
    op.add_column("sample_requests", sa.Column("set_aside", sa.String()))


def downgrade() -> None:
    for name in reversed(SAMPLES):
        op.drop_column("sample_requests", name)
    op.drop_table("outcome_batches")
