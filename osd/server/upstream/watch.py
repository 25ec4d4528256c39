"""Keeps what the proxy knows of its replicas true: which there are, which are well, and what each serves."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Collection, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple

import aiohttp

from osd.server.upstream.addresses import ReplicaAddress, replicas_of
from osd.server.upstream.host import UpstreamHost
from osd.server.upstream.replicas import Replica
from storage import records
from storage.access.processes import ServerState, ServingProcess
from storage.errors import OsdError

log = logging.getLogger(__name__)

NOT_THERE = (404, 405, 501)
"""Statuses of a route that a server does not have."""
LATE = 2
"""Times in a row that a replica may be late to say that it is well, before it counts as down: a busy one may be."""


class _Listed(NamedTuple):
    """What the store says of replicas."""

    addresses: Sequence[ReplicaAddress]
    drains: Collection[str]
    """Names of those that are to get nothing new (`osd servers drain`)."""


class _NotWell(Exception):
    """A replica does not answer as it should; the text says how, for people."""


class UpstreamWatch:
    """Looks at the replicas again and again."""

    def __init__(self, host: UpstreamHost) -> None:
        self.host, self.pool, self.settings = host, host.pool, host.settings
        self._late: dict[str, int] = {}
        self._away = False

    async def follow(self) -> None:
        """Look every ``upstream.check_seconds``, for ever."""
        while True:
            await asyncio.sleep(self.settings.upstream.check_seconds)
            await self.look_at_replicas()

    async def look_at_replicas(self) -> None:
        """Look once: at the store, then at each replica."""
        try:
            listed = await asyncio.to_thread(self._list)
        except OsdError as error:
            if not self._away:
                log.warning("no look at the engines: %s", error, extra={"action": "engines_look_failed"})
            self._away = True
        else:
            self._away = False
            self.pool.set_addresses(listed.addresses)
            for name, replica in self.pool.replicas.items():
                replica.drains = name in listed.drains
        await asyncio.gather(*map(self._check, list(self.pool.replicas.values())))
        self.pool.compare_targets()

    def _list(self) -> _Listed:
        """Read the store, and list replicas that it does not know as workers, so that they can be drained like others.
        Raises StoreError."""
        addresses = replicas_of(self.settings.upstream.replicas, self.host.store.engines.list())
        workers = {worker.id: worker for worker in self.host.store.servers.list()}
        for replica in list(self.pool.replicas.values()):
            if not replica.at.engine and not replica.removed and replica.well:
                self._beat(replica, workers.get(replica.at.name))
        self.host.store.tenants.learnable(())  # so that requests find it without a query
        return _Listed(addresses, {name for name, worker in workers.items() if worker.drains})

    def _beat(self, replica: Replica, before: ServingProcess | None) -> None:
        at, name = records.now(), replica.at.name
        known = before is not None and before.state is not ServerState.GONE
        self.host.store.servers.beat(ServingProcess(
            name, name.rpartition(":")[0], 0, replica.at.url, before.started_at if before and known else at, at,
            at + self.settings.fleet.gone_seconds, running=replica.running, trouble=replica.misfit,
        ))  # fmt: skip

    async def _check(self, replica: Replica) -> None:
        """Ask a replica whether it is well, and what it serves."""
        was, name = replica.well, replica.at.name
        try:
            async with asyncio.timeout(self.settings.upstream.connect_seconds):
                ready = await self._asks(replica, "/health") and await self._asks(replica, "/ready", drains=True)
                models, own = _served(await self._models(replica))
        except TimeoutError:
            self._late[name] = self._late.get(name, 0) + 1
            if self._late[name] >= LATE or not was:
                self._down(replica, f"{replica.at.url} does not say in time that it is well (upstream.connect_seconds)")
        except _NotWell as error:
            self._down(replica, str(error))
        except (aiohttp.ClientError, OSError, ValueError, RecursionError) as error:
            self._down(
                replica, f"{replica.at.url} does not answer ({_reason(error)}). Is it running, and reached by that URL?"
            )
        else:
            self._late.pop(name, None)
            replica.found_well(models, own=own, ready=ready)
            if not was:
                log.info("%s is well", name, extra={"action": "replica_up", "replica": name})

    def _down(self, replica: Replica, trouble: str) -> None:
        if replica.trouble != trouble:
            log.warning("%s", trouble, extra={"action": "replica_down", "replica": replica.at.name})
        replica.found_down(trouble)

    def _get(self, url: str) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        return self.host.client.get(url, headers=self.host.headers, allow_redirects=False)

    async def _asks(self, replica: Replica, path: str, *, drains: bool = False) -> bool:
        """Return whether a replica says 200 at a path, or has none such. ``drains``: whether 503 means that it takes
        nothing new, and not that it is unwell."""
        async with self._get(replica.at.url + path) as answer:
            if answer.status == 200 or answer.status in NOT_THERE:
                return True
            if drains:
                return False
            raise _NotWell(f"{replica.at.url} says {answer.status} at {path}: it is not well. Its own log says why.")

    async def _models(self, replica: Replica) -> Any:
        url = replica.at.url + "/v1/models"
        async with self._get(url) as answer:
            if answer.status in (401, 403):
                raise _NotWell(f"{replica.at.url} wants an API key, or another one: name it with upstream.api_key.")
            if answer.status != 200:
                raise _NotWell(
                    f"{url} says {answer.status}: that is no server with OpenAI's API. Give its root, without /v1."
                )
            return json.loads(await answer.read())


def _served(said: Any) -> tuple[dict[str, dict[str, Any]], bool]:
    """Return the cards at /v1/models by name, the target's own before adapters', and whether it is an `osd serve`.
    Raises ValueError."""
    cards = said.get("data") if isinstance(said, dict) else None
    cards = [card for card in cards if isinstance(card, dict) and isinstance(card.get("id"), str)] if cards else []
    if not cards:
        raise ValueError("/v1/models lists no model")
    cards.sort(key=lambda card: card.get("parent") is not None)
    return {card["id"]: card for card in cards}, cards[0].get("owned_by") == "osd"


def _reason(error: Exception) -> str:
    cause = getattr(error, "os_error", None)
    return (cause and cause.strerror) or str(error) or type(error).__name__
