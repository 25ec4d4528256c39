"""What belongs to no taught topic: hashed features of prompts, which end with their requests."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "route_background",
        sa.Column("request_id", sa.String(), nullable=False),
        sa.Column("features", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("request_id", name="pk_route_background"),
        sa.ForeignKeyConstraint(
            ["request_id"],
            ["sample_requests.request_id"],
            name="fk_route_background_request_id",
            ondelete="CASCADE",
        ),
    )


def downgrade() -> None:
    op.drop_table("route_background")
