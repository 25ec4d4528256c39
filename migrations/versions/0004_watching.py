"""Sums by the week, sums by place in a draft, and the indexes that questions about versions need."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

INT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

DAY, WEEK = 86_400, 604_800
KEYS = "route, draft_version, controller, tenant, worker"
COUNTS = (
    "requests",
    "rounds",
    "drafted",
    "accepted",
    "rejections",
    "emitted",
    "prompt_tokens",
    "draft_ms",
    "verify_ms",
)
INDEXES = {
    "outcome_counters": ["draft_version", "span", "start"],
    "sample_requests": ["draft_version", "created_at"],
}


def upgrade() -> None:
    _positions()
    _weeks()
    for table, columns in INDEXES.items():
        op.create_index(f"ix_{table}_{'_'.join(columns)}", table, columns)


def _positions() -> None:
    op.create_table(
        "position_counters",
        sa.Column("span", INT, nullable=False, autoincrement=False),
        sa.Column("start", INT, nullable=False, autoincrement=False),
        sa.Column("route", sa.String(), nullable=False),
        sa.Column("draft_version", sa.String(), nullable=False),
        sa.Column("position", INT, nullable=False, autoincrement=False),
        sa.Column("drafted", INT, nullable=False),
        sa.Column("accepted", INT, nullable=False),
        sa.Column("refused", INT, nullable=False),
        sa.PrimaryKeyConstraint("span", "start", "route", "draft_version", "position", name="pk_position_counters"),
    )


def _weeks() -> None:
    """The weeks of the days that are there; negative times are before 1970 and nobody's."""
    start = f"start - start % {WEEK}"
    names, sums = ", ".join(COUNTS), ", ".join(f"sum({name})" for name in COUNTS)
    op.execute(
        f"INSERT INTO outcome_counters (span, start, {KEYS}, {names}) "
        f"SELECT {WEEK}, {start}, {KEYS}, {sums} FROM outcome_counters WHERE span = {DAY} GROUP BY {start}, {KEYS}"
    )


def downgrade() -> None:
    for table, columns in INDEXES.items():
        op.drop_index(f"ix_{table}_{'_'.join(columns)}", table)
    op.execute(f"DELETE FROM outcome_counters WHERE span = {WEEK}")
    op.drop_table("position_counters")
