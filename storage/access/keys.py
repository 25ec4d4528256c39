"""API keys: who may call the server, for which tenant, how much, and until when.

A key is 256 random bits, of which only the SHA-256 is stored. A slow hash protects guessable secrets; this one cannot
be guessed, and every request would pay for the slowness.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Mapped, mapped_column

from storage.errors import BadInput, UnknownKey
from storage.records import EVERYBODY, now
from storage.sql import audit
from storage.sql.database import Repository
from storage.sql.tables import Base, Ids, record_of

PREFIX = "osd-"
SHOWN = 8
"""Characters of a key shown in lists, its prefix included."""
SCOPES = ("infer", "metrics", "admin")
DEFAULT_SCOPES = ("infer",)


class ApiKeyRow(Base):
    """An API key of the server. Ended keys stay, so that the trail can be read."""

    __tablename__ = "api_keys"
    id: Mapped[str] = mapped_column(primary_key=True)
    hash: Mapped[str] = mapped_column(unique=True)
    shown: Mapped[str]
    name: Mapped[str]
    tenant: Mapped[str]
    scopes: Mapped[Ids]
    requests_per_minute: Mapped[int | None]
    tokens_per_minute: Mapped[int | None]
    created_at: Mapped[float]
    expires_at: Mapped[float | None]
    revoked_at: Mapped[float | None]


@dataclass(frozen=True, slots=True)
class ApiKey:
    """The stored facts of a key."""

    id: str
    hash: str
    """SHA-256 of the key, hexadecimal."""
    shown: str
    """The key's first characters, by which people tell keys apart."""
    name: str
    tenant: str
    scopes: tuple[str, ...]
    requests_per_minute: int | None
    """Limit of requests a minute; None is no limit."""
    tokens_per_minute: int | None
    """Limit of prompt and output tokens a minute; None is no limit."""
    created_at: float
    expires_at: float | None
    revoked_at: float | None

    def valid(self, at: float) -> bool:
        """Return whether the key is valid at a time."""
        return self.revoked_at is None and (self.expires_at is None or at < self.expires_at)

    def facts(self) -> dict[str, Any]:
        """Return the fields without the hash, for lists and the audit trail."""
        return {name: value for name, value in asdict(self).items() if name != "hash"}


def digest(secret: str) -> str:
    """Return the SHA-256 of a key, hexadecimal."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


class KeyLedger(Repository):
    """The store's API keys; every change is recorded in the audit trail."""

    def create(
        self,
        tenant: str,
        *,
        name: str = "",
        scopes: Sequence[str] = DEFAULT_SCOPES,
        requests_per_minute: int | None = None,
        tokens_per_minute: int | None = None,
        expires_at: float | None = None,
        who: str | None = None,
    ) -> tuple[str, ApiKey]:
        """Create a key; return its secret, which cannot be shown again, and its record. Raises BadInput."""
        check(tenant, scopes, (requests_per_minute, tokens_per_minute), expires_at)
        secret = PREFIX + secrets.token_urlsafe(32)
        key = ApiKey(
            f"key-{secrets.token_hex(4)}", digest(secret), secret[:SHOWN], name, tenant, tuple(dict.fromkeys(scopes)),
            requests_per_minute, tokens_per_minute, now(), expires_at, None,
        )  # fmt: skip
        with self._db.session() as session:
            session.add(ApiKeyRow(**{**asdict(key), "scopes": list(key.scopes)}))
            audit.note(session, "keys create", key.id, key.facts(), who=who)
        return secret, key

    def list(self) -> list[ApiKey]:
        """Return every key ever created, oldest first."""
        return [to_record(row) for row in self._db.scalars(select(ApiKeyRow).order_by(ApiKeyRow.created_at))]

    def revoke(self, key_id: str, who: str | None = None) -> ApiKey:
        """Revoke a key; one that has ended stays as it is. Raises UnknownKey."""
        with self._db.session() as session:
            row = session.get(ApiKeyRow, key_id, with_for_update=True)
            if row is None:
                raise UnknownKey(key=key_id)
            if row.revoked_at is None:
                before, row.revoked_at = to_record(row).facts(), now()
                audit.note(session, "keys revoke", key_id, to_record(row).facts(), before, who=who)
            return to_record(row)


def check(tenant: str, scopes: Sequence[str], limits: Sequence[int | None], expires_at: float | None) -> None:
    """Raise BadInput for a key that cannot be created, naming the reason."""
    if not tenant.strip() or tenant == EVERYBODY:
        raise BadInput(reason=f"{tenant!r} names no tenant; give the one whose requests come with this key.")
    if not scopes or (unknown := sorted(set(scopes) - set(SCOPES))):
        given = ", ".join(unknown) if scopes else "none"
        raise BadInput(reason=f"A key needs scopes out of {', '.join(SCOPES)}; given: {given}.")
    if any(limit is not None and limit < 1 for limit in limits):
        raise BadInput(reason="A limit of requests or tokens a minute is 1 or more; leave it out for none.")
    if expires_at is not None and expires_at <= now():
        raise BadInput(reason="The key would have expired already; give a time to come.")


def to_record(row: ApiKeyRow) -> ApiKey:
    """Convert a row to a record."""
    return record_of(ApiKey, row, scopes=tuple(row.scopes))
