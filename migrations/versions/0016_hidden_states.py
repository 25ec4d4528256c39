"""Bytes of the target's hidden states among a request's samples."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

INT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("sample_requests", sa.Column("hidden_bytes", INT, server_default=sa.text("0"), nullable=False))


def downgrade() -> None:
    op.drop_column("sample_requests", "hidden_bytes")
