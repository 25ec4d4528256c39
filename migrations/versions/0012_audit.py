"""One audit trail in the place of two.

Lines of admins keep their numbers, which tables of n-grams and requests that come late are held against; lines of
routes follow them, in their order.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

ADMIN = sa.table(
    "admin_changes", sa.column("id"), sa.column("at"), sa.column("who"), sa.column("action"), sa.column("subject"),
    sa.column("facts", sa.JSON()),
)  # fmt: skip
ROUTES = sa.table(
    "route_changes", sa.column("id"), sa.column("at"), sa.column("who"), sa.column("action"), sa.column("route"),
    sa.column("before", sa.JSON()), sa.column("after", sa.JSON()),
)  # fmt: skip
AUDIT = sa.table(
    "audit", sa.column("id"), sa.column("at"), sa.column("who"), sa.column("origin"), sa.column("action"),
    sa.column("subject"), sa.column("before", sa.JSON()), sa.column("after", sa.JSON()),
)  # fmt: skip
GROUPS = {"promote": "drafts", "rollback": "drafts", "drain": "servers"}


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("who", sa.String(), nullable=False),
        sa.Column("origin", sa.String(), nullable=False),
        sa.Column("action", sa.String(), nullable=False),
        sa.Column("subject", sa.String()),
        sa.Column("before", sa.JSON(), nullable=False),
        sa.Column("after", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
    )
    op.create_index("ix_audit_action", "audit", ["action"])
    op.create_index("ix_audit_subject", "audit", ["subject"])
    connection = op.get_bind()
    lines = [_admin(row) for row in connection.execute(sa.select(ADMIN).order_by(ADMIN.c.id))]
    last = lines[-1]["id"] if lines else 0
    changes = connection.execute(sa.select(ROUTES).order_by(ROUTES.c.id))
    lines += [
        {"id": last + number, "at": row.at, "who": row.who, "origin": "", "action": f"router {row.action}",
         "subject": row.route, "before": row.before, "after": row.after}
        for number, row in enumerate(changes, 1)
    ]  # fmt: skip
    if lines:
        op.bulk_insert(AUDIT, lines)
        _go_on_after(connection, "audit", lines[-1]["id"])
    op.drop_table("admin_changes")
    op.drop_table("route_changes")


def _admin(row: Any) -> dict[str, Any]:
    """Return a line about admins as one of the trail, under the name of the command that makes it."""
    facts, action = dict(row.facts), f"{GROUPS.get(row.action, 'replay')} {row.action}"
    before, after = facts.get("before") or {}, facts.get("after") or facts
    if row.action == "key":
        action, after = ("keys create", facts["created"]) if "created" in facts else ("keys revoke", facts)
    elif row.action == "engine":
        action = "engines remove" if "removed" in facts else "engines add"
        before, after = (facts["removed"], {}) if "removed" in facts else (before, after)
    return {
        "id": row.id, "at": row.at, "who": row.who, "origin": "", "action": action, "subject": row.subject,
        "before": before, "after": after,
    }  # fmt: skip


def _go_on_after(connection: sa.Connection, table: str, last: int) -> None:
    if connection.dialect.name == "postgresql":
        sequence = sa.func.pg_get_serial_sequence(table, "id")
        connection.execute(sa.select(sa.func.setval(sequence, last)))


def downgrade() -> None:
    """Lines about routes get new numbers; those of commands that the older trails did not know are lost."""
    op.create_table(
        "admin_changes",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("who", sa.String(), nullable=False),
        sa.Column("action", sa.String(), nullable=False),
        sa.Column("subject", sa.String()),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_admin_changes"),
    )
    op.create_index("ix_admin_changes_subject", "admin_changes", ["subject"])
    op.create_table(
        "route_changes",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("who", sa.String(), nullable=False),
        sa.Column("action", sa.String(), nullable=False),
        sa.Column("route", sa.String()),
        sa.Column("before", sa.JSON(), nullable=False),
        sa.Column("after", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_route_changes"),
    )
    op.create_index("ix_route_changes_route", "route_changes", ["route"])
    connection = op.get_bind()
    routes, admin = [], []
    for row in connection.execute(sa.select(AUDIT).order_by(AUDIT.c.id)):
        group, _, action = row.action.partition(" ")
        if group == "router":
            routes.append({
                "id": len(routes) + 1, "at": row.at, "who": row.who, "action": action, "route": row.subject,
                "before": row.before, "after": row.after,
            })  # fmt: skip
        else:
            admin.append({
                "id": row.id, "at": row.at, "who": row.who, "action": action, "subject": row.subject,
                "facts": row.after,
            })  # fmt: skip
    for table, rows in ((ADMIN, admin), (ROUTES, routes)):
        if rows:
            op.bulk_insert(table, rows)
            _go_on_after(connection, table.name, rows[-1]["id"])
    op.drop_table("audit")
