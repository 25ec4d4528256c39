"""Routes that may be many: their candidates, their audit trail, pins, taught examples, proposals; a server of several
drafts."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

INT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

NEW_TABLES = ("route_proposals", "route_examples", "route_aliases", "route_pins", "route_changes")


def upgrade() -> None:
    op.add_column("drafts", sa.Column("options", sa.JSON(), server_default=sa.text("'{}'"), nullable=False))
    op.add_column("routes", sa.Column("candidates", sa.JSON(), server_default=sa.text("'[]'"), nullable=False))
    op.add_column("routes", sa.Column("created_at", sa.Double()))
    op.execute(
        "UPDATE routes SET created_at = (SELECT created_at FROM drafts WHERE name = 'default') WHERE name = 'default'"
    )
    _widen_serving()
    _changes()
    _traffic()
    _learning()


def _widen_serving() -> None:
    """One worker may serve many drafts. The table is made anew: SQLite cannot change a primary key."""
    query = "SELECT s.worker, v.draft, s.version, s.since FROM serving s JOIN draft_versions v ON v.id = s.version"
    rows = [row._asdict() for row in op.get_bind().execute(sa.text(query))]
    op.drop_table("serving")
    table = op.create_table(
        "serving",
        sa.Column("worker", sa.String(), nullable=False),
        sa.Column("draft", sa.String(), nullable=False),
        sa.Column("version", sa.String(), nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("worker", "draft", name="pk_serving"),
        sa.ForeignKeyConstraint(["draft"], ["drafts.name"], name="fk_serving_draft"),
        sa.ForeignKeyConstraint(["version"], ["draft_versions.id"], name="fk_serving_version"),
    )
    op.bulk_insert(table, rows)


def _changes() -> None:
    op.create_table(
        "route_changes",
        sa.Column("id", INT, autoincrement=True, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("who", sa.String(), nullable=False),
        sa.Column("action", sa.String(), nullable=False),
        sa.Column("route", sa.String()),
        sa.Column("before", sa.JSON(), nullable=False),
        sa.Column("after", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_route_changes"),
    )
    op.create_index("ix_route_changes_route", "route_changes", ["route"])


def _traffic() -> None:
    op.create_table(
        "route_pins",
        sa.Column("tenant", sa.String(), nullable=False),
        sa.Column("route", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", name="pk_route_pins"),
        sa.ForeignKeyConstraint(["route"], ["routes.name"], name="fk_route_pins_route"),
    )
    op.create_table(
        "route_aliases",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("route", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_route_aliases"),
        sa.ForeignKeyConstraint(["route"], ["routes.name"], name="fk_route_aliases_route"),
    )


def _learning() -> None:
    op.create_table(
        "route_examples",
        sa.Column("id", INT, autoincrement=True, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("topic", sa.String(), nullable=False),
        sa.Column("text", sa.String(), nullable=False),
        sa.Column("hash", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_route_examples"),
        sa.UniqueConstraint("hash", name="uq_route_examples_hash"),
    )
    op.create_index("ix_route_examples_topic", "route_examples", ["topic"])
    op.create_table(
        "route_proposals",
        sa.Column("id", INT, autoincrement=True, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_route_proposals"),
    )


def downgrade() -> None:
    for table in NEW_TABLES:
        op.drop_table(table)
    _narrow_serving()
    op.drop_column("routes", "created_at")
    op.drop_column("routes", "candidates")
    op.drop_column("drafts", "options")


def _narrow_serving() -> None:
    """A worker keeps the draft that it marked last."""
    rows = [row._asdict() for row in op.get_bind().execute(sa.text("SELECT * FROM serving ORDER BY since"))]
    op.drop_table("serving")
    table = op.create_table(
        "serving",
        sa.Column("worker", sa.String(), nullable=False),
        sa.Column("version", sa.String(), nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("worker", name="pk_serving"),
        sa.ForeignKeyConstraint(["version"], ["draft_versions.id"], name="fk_serving_version"),
    )
    last = {row["worker"]: {name: row[name] for name in ("worker", "version", "since")} for row in rows}
    op.bulk_insert(table, list(last.values()))
