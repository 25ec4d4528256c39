"""Tenants' permissions: whether their requests are stored, and whether they train drafts that others use."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from sqlalchemy import ColumnElement, and_, or_, select, true
from sqlalchemy.orm import Session

from storage.errors import BadInput
from storage.names import draft_of
from storage.records import EVERYBODY
from storage.settings import PrivacySettings
from storage.sql import audit
from storage.sql.database import Database
from storage.sql.tables import RoutePinRow, RouteRow, SampleRow, TenantRow, record_of, table_of

_TENANTS = table_of(TenantRow).c
SAID = select(_TENANTS.name, _TENANTS.learn)


@dataclass(frozen=True, slots=True)
class Tenant:
    """The permissions of one tenant."""

    name: str
    learn: bool
    """Whether its requests may be stored."""
    share: bool
    """Whether they may train drafts that other tenants use."""


class TenantLedger:
    """The tenants with permissions of their own; the others have those of the settings."""

    def __init__(self, db: Database, privacy: PrivacySettings) -> None:
        self._db = db
        self._privacy = privacy
        self._said: dict[str, bool] | None = None

    def list(self) -> list[Tenant]:
        """Return the tenants, in order of name."""
        return [record_of(Tenant, row) for row in self._db.scalars(select(TenantRow).order_by(TenantRow.name))]

    def get(self, name: str) -> Tenant:
        """Return a tenant's permissions, its own or those of the settings."""
        with self._db.session(read_only=True) as session:
            row = session.get(TenantRow, name)
            return Tenant(name, self._privacy.learn, self._privacy.share) if row is None else record_of(Tenant, row)

    def allow(
        self, name: str, *, learn: bool | None = None, share: bool | None = None, who: str | None = None
    ) -> Tenant:
        """Set a tenant's permissions; None leaves one as it is. Stored data stays: `osd replay forget` deletes it.

        Raises BadInput for an invalid name.
        """
        if not name.strip() or name == EVERYBODY:
            raise BadInput(reason=f"{name!r} names no tenant; [privacy] says what those allow of whom nothing is said.")
        before = self.get(name)
        after = Tenant(name, before.learn if learn is None else learn, before.share if share is None else share)
        with self._db.session() as session:
            session.merge(TenantRow(**asdict(after)))
            audit.note(session, "replay tenant", name, asdict(after), asdict(before), who=who)
        return after

    def learnable(self, tenants: Iterable[str]) -> set[str]:
        """Return the tenants whose requests may be stored."""
        asked = set(tenants)
        self._said = {row.name: row.learn for row in self._db.rows(SAID)}
        return {tenant for tenant in asked if self._said.get(tenant, self._privacy.learn)}

    def last_known(self, tenants: Iterable[str]) -> set[str]:
        """Return what :meth:`learnable` last found for these tenants, without a query; empty before its first call."""
        if self._said is None:
            return set()
        return {tenant for tenant in tenants if self._said.get(tenant, self._privacy.learn)}


def usable_for(session: Session, draft: str, privacy: PrivacySettings) -> ColumnElement[bool]:
    """Return the SQL condition for samples that may train the draft: of sharing tenants, and of the draft's own
    tenant."""
    said = {row.name: row.share for row in session.scalars(select(TenantRow))}
    other = [name for name, share in said.items() if share != privacy.share]
    if privacy.share and not other:
        return true()
    shared = SampleRow.tenant.not_in(other) if privacy.share else SampleRow.tenant.in_(other)
    if (own := _owner(session, draft)) is None:
        return shared
    return or_(shared, and_(SampleRow.tenant == own[0], SampleRow.route == own[1]))


def _owner(session: Session, draft: str) -> tuple[str, str] | None:
    """Return the one tenant pinned to the one route of the draft, and that route; None where there is none."""
    routes = [row.name for row in session.scalars(select(RouteRow)) if draft_of(draft) in (row.draft, *row.candidates)]
    pinned = list(session.scalars(select(RoutePinRow.tenant).where(RoutePinRow.route.in_(routes))))
    return (pinned[0], routes[0]) if len(routes) == len(pinned) == 1 and pinned[0] != EVERYBODY else None
