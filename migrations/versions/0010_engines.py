"""Serving engines that are not ours."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "engines",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("url", sa.String(), nullable=False),
        sa.Column("draft", sa.String(), nullable=False),
        sa.Column("added_at", sa.Double(), nullable=False),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.Column("holder", sa.String()),
        sa.Column("lease_until", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_engines"),
        sa.UniqueConstraint("url", name="uq_engines_url"),
        sa.ForeignKeyConstraint(["draft"], ["drafts.name"], name="fk_engines_draft"),
    )


def downgrade() -> None:
    op.drop_table("engines")
