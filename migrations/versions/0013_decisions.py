"""Decisions that hold, and names of versions."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("drafts", sa.Column("hold", sa.JSON(), server_default=sa.text("'{}'"), nullable=False))
    op.add_column("drafts", sa.Column("previous_version", sa.String()))
    op.create_table(
        "version_aliases",
        sa.Column("draft", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("version", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("draft", "name", name="pk_version_aliases"),
        sa.ForeignKeyConstraint(["draft"], ["drafts.name"], name="fk_version_aliases_draft"),
        sa.ForeignKeyConstraint(["version"], ["draft_versions.id"], name="fk_version_aliases_version"),
    )


def downgrade() -> None:
    op.drop_table("version_aliases")
    op.drop_column("drafts", "previous_version")
    op.drop_column("drafts", "hold")
