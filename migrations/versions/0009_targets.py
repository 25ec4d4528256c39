"""Targets by name: which one each line of a draft, and each stored request, is about."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Nothing says of which target the drafts and requests of before are: the drafts are marked, and set aside."""
    op.create_table(
        "targets",
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("first_seen", sa.Double(), nullable=False),
        sa.Column("served_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_targets"),
    )
    op.add_column("drafts", sa.Column("target", sa.String()))
    op.add_column("sample_requests", sa.Column("target", sa.String()))
    op.execute(sa.text("UPDATE drafts SET target = 'unnamed' WHERE name IN (SELECT draft FROM draft_versions)"))


def downgrade() -> None:
    op.drop_column("sample_requests", "target")
    op.drop_column("drafts", "target")
    op.drop_table("targets")
