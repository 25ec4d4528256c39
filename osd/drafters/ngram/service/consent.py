"""What tenants allow, known beforehand: decoding never waits for the database."""

from __future__ import annotations

import time

from storage.access.tenants import Tenant, TenantLedger

AGAIN = 10.0
"""Seconds after which known tenants are looked up again."""


class Consent:
    """Cache of tenants' settings. One thread refreshes it from the store, another reads."""

    def __init__(self, ledger: TenantLedger) -> None:
        self._ledger = ledger
        self._known: dict[str, Tenant] = {}
        self._asked: set[str] = set()
        self._due = 0.0

    def of(self, tenant: str) -> Tenant | None:
        """Return a tenant's settings; None where they are not known yet."""
        found = self._known.get(tenant)
        if found is None:
            self._asked.add(tenant)
        return found

    def refresh(self) -> None:
        """Load tenants that were asked for, and now and then all. Raises StoreError."""
        asked = list(self._asked)
        if time.monotonic() >= self._due:
            asked, self._due = [*self._known, *asked], time.monotonic() + AGAIN
        for tenant in asked:
            self._known[tenant] = self._ledger.get(tenant)
            self._asked.discard(tenant)
