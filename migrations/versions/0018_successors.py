"""A target may be the successor of another, and what is known of both beside their digests is kept."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("targets", sa.Column("predecessor", sa.String(), nullable=True))
    op.add_column("targets", sa.Column("facts", sa.JSON(), nullable=False, server_default=sa.text("'{}'")))


def downgrade() -> None:
    for name in ("facts", "predecessor"):
        op.drop_column("targets", name)
