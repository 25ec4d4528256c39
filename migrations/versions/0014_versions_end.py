"""Versions whose weights were deleted, how large they are, when each first served, and where float32 masters lie."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """When versions of before first served is not known; when they were made is near enough to say in which order."""
    op.add_column("draft_versions", sa.Column("bytes", sa.BigInteger().with_variant(sa.Integer(), "sqlite")))
    op.add_column("draft_versions", sa.Column("served_at", sa.Double()))
    op.add_column("draft_versions", sa.Column("deleted_at", sa.Double()))
    op.add_column("draft_versions", sa.Column("has_master", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.execute(
        sa.text("UPDATE draft_versions SET served_at = created_at WHERE state IN ('serving', 'retired', 'rolled_back')")
    )


def downgrade() -> None:
    for name in ("has_master", "deleted_at", "served_at", "bytes"):
        op.drop_column("draft_versions", name)
