"""Digests of whole segments: pages of a Parquet file have checksums, its headers have none."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("segments", sa.Column("digest", sa.String()))


def downgrade() -> None:
    op.drop_column("segments", "digest")
