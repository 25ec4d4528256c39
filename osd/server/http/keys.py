"""The store's API keys held in memory, so that a request never waits for the database, and each key's limits."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from osd.server.errors import ApiError, BadKey, Busy, NotAllowed
from storage.access.keys import ApiKey, KeyLedger, digest
from storage.errors import StoreError
from storage.records import DEFAULT_TENANT

log = logging.getLogger(__name__)

MINUTE = 60.0


class TokenBucket:
    """A token bucket of one minute's worth, refilled continuously. Taking after the fact may leave it in debt."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.size, self._clock = per_minute, clock
        self._level, self._at = float(per_minute), clock()

    @property
    def level(self) -> float:
        """The present amount."""
        now = self._clock()
        self._level = min(float(self.size), self._level + (now - self._at) * self.size / MINUTE)
        self._at = now
        return self._level

    def wait(self, amount: float = 1.0) -> float:
        """Return the seconds until ``amount`` is available; 0 where it is."""
        return max(0.0, amount - self.level) * MINUTE / self.size

    def take(self, amount: float) -> None:
        """Take an amount, whether it is available or not."""
        self._level = self.level - amount


class Caller:
    """The caller of the API: a key, or anybody where none is needed."""

    def __init__(self, key: ApiKey | None = None) -> None:
        limits = {"requests": key.requests_per_minute, "tokens": key.tokens_per_minute} if key else {}
        self.key = key
        self.buckets = {what: TokenBucket(limit) for what, limit in limits.items() if limit}
        """The limits that it has, by what they count."""

    @property
    def tenant(self) -> str:
        """The tenant of the caller's requests."""
        return self.key.tenant if self.key else DEFAULT_TENANT

    def let_in(self) -> None:
        """Count a request. Raises Busy."""
        for what, bucket in self.buckets.items():
            if wait := bucket.wait():
                raise Busy(reason=f"This key may use {bucket.size} {what} a minute.", retry_after=wait)
        self._take("requests", 1)

    def charge(self, tokens: int) -> None:
        """Count tokens that were read and written."""
        self._take("tokens", tokens)

    def _take(self, what: str, amount: int) -> None:
        if what in self.buckets:
            self.buckets[what].take(amount)

    def headers(self) -> dict[str, str]:
        """Return OpenAI's headers on the remaining limits."""
        size = {f"x-ratelimit-limit-{what}": str(bucket.size) for what, bucket in self.buckets.items()}
        return size | {
            f"x-ratelimit-remaining-{what}": str(max(0, int(bucket.level))) for what, bucket in self.buckets.items()
        }


class KeyRing:
    """The API keys, read again at an interval. Without any, everybody may do everything; see `osd serve` on
    addresses."""

    def __init__(self, keys: KeyLedger, seconds: float, *, required: bool = True, local_only: bool = True) -> None:
        """Read the keys. ``required`` False lets everybody in, keys or not.

        ``local_only``: the server listens on this machine's own addresses only. Raises StoreError.
        """
        self._ledger, self._seconds, self.required, self.local_only = keys, seconds, required, local_only
        self._keys: dict[str, ApiKey] = {}
        self._callers: dict[str, Caller] = {}
        self._nobody = Caller()
        self._take(keys.list())

    @property
    def needed(self) -> bool:
        """Whether a request must bring a key. An ended key does not open the server to all."""
        return self.required and bool(self._keys)

    async def follow(self) -> None:
        """Read the keys again and again; when that fails the last ones stay."""
        while True:
            await asyncio.sleep(self._seconds)
            try:
                self._take(await asyncio.to_thread(self._ledger.list))
            except StoreError as error:
                log.error("keys could not be read: %s", error, extra={"action": "keys_failed"})

    def _take(self, keys: list[ApiKey]) -> None:
        self._keys = {key.hash: key for key in keys}

    def caller(self, authorization: str | None, scope: str) -> Caller:
        """Return the caller with this header. Raises BadKey and NotAllowed."""
        if not self.needed:
            return self._nobody
        kind, _, secret = (authorization or "").partition(" ")
        if kind.lower() != "bearer" or not secret.strip():
            raise BadKey(reason="Give an API key: `Authorization: Bearer osd-…`.", code="missing_api_key")
        key = self._keys.get(digest(secret.strip()))
        if key is None or not key.valid(time.time()):
            raise BadKey(reason="The API key is not known, was revoked, or has expired.")
        if scope not in key.scopes:
            raise NotAllowed(reason=f"The API key may not do this: it lacks the scope {scope!r}.")
        return self._known(key)

    def _known(self, key: ApiKey) -> Caller:
        """Return the key's one Caller object, so that its limits count."""
        return self._callers.setdefault(key.hash, Caller(key))

    def check(self, caller: Caller) -> ApiError | None:
        """Return the error for a caller whose key has ended since it was admitted; None if it has not."""
        if caller.key is None or not self.required:
            return None
        key = self._keys.get(caller.key.hash)
        good = key is not None and key.valid(time.time())
        return None if good else BadKey(reason="The API key was revoked, or has expired.")
