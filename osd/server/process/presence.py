"""Says in the database that this server lives, and hears whether it is to drain.

A thread of its own: while the database is away it waits, and decoding does not. What it says next is what is true then,
so nothing has to be caught up with.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from osd.server.admin.snapshots import AdminHost
from storage import records
from storage.access.processes import ServerState, ServingProcess
from storage.errors import OsdError

if TYPE_CHECKING:
    from osd.engine.engine import Engine

log = logging.getLogger(__name__)


class EngineDrafts:
    """The drafts that an engine has in memory."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def follow(self, engine: Engine) -> None:
        """Speak of another engine from now on."""
        self._engine = engine

    def held(self) -> Mapping[str, Mapping[str, str]]:
        """Return the version and digest of each draft, by the draft's name; the digest is that of the files it was read
        from."""
        swap = self._engine.swap
        if swap is None:
            return {}
        digests = {version.id: version.digest for version in swap.serving.copy().values()}
        held = {name: draft.version for name, draft in self._engine.pool.loaded_drafts.copy().items()}
        return {name: {"version": version, "digest": digests.get(version, "")} for name, version in held.items()}

    @property
    def trouble(self) -> str | None:
        """Why a draft has not the version that it should have; None where all have."""
        swap = self._engine.swap
        return "; ".join(swap.troubles.copy().values()) or None if swap else None


class Presence:
    """Between :meth:`begin` and :meth:`close` the server is listed."""

    def __init__(
        self, host: AdminHost, name: str, url: str, wanted: Callable[[bool], object], replaces: str | None = None,
        drafts: EngineDrafts | None = None,
    ) -> None:  # fmt: skip
        """``wanted`` hears, on the presence's thread, whether somebody wants this server to drain, each time that
        changes. ``replaces``: one that ended without a word, whose place this one takes. ``drafts``: None for one that
        does not draft."""
        self.id, self.url, self.state = name, url, ServerState.SERVING
        self._store, self._fleet, self._load = host.store, host.settings.fleet, host.load
        self._drafts, self._wanted, self._replaces = drafts, wanted, replaces
        self._started, self._drains, self._away = records.now(), False, False
        self._finished, self._at = self._load.finished, time.monotonic()
        self._wake, self._closing = threading.Event(), False
        self._thread = threading.Thread(target=self._work, name="osd-presence", daemon=True)

    def begin(self) -> None:
        """Start to tell."""
        self._thread.start()

    def turn(self, state: ServerState) -> None:
        """Change to another state, and tell it at once."""
        self.state = state
        self._wake.set()

    def close(self) -> None:
        """Stop telling, and take this server off the list: it ended in order. Never raises."""
        self._closing = True
        self._wake.set()
        self._thread.join()
        try:
            self._store.canaries.let_go(self.id)
            self._store.servers.end(self.id)
        except OsdError as error:
            log.warning("the store was not told of the end: %s", error, extra={"action": "presence_close_failed"})

    def _work(self) -> None:
        while not self._closing:
            self._try_tell()
            self._wake.wait(self._fleet.heartbeat_seconds)
            self._wake.clear()

    def _try_tell(self) -> None:
        try:
            self._tell()
        except OsdError as error:
            if not self._away:
                log.warning("no heartbeat: %s", error, extra={"action": "heartbeat_failed"})
            self._away = True
        else:
            self._away = False

    def _tell(self) -> None:
        if self.state is ServerState.DRAINING:
            self._store.canaries.let_go(self.id)
        drains = self._store.servers.beat(self._now(), self._replaces)
        self._replaces = None
        if drains != self._drains:
            self._drains = drains
            self._wanted(drains)

    def _now(self) -> ServingProcess:
        at, load, drafts = records.now(), self._load, self._drafts
        return ServingProcess(
            self.id, socket.gethostname(), os.getpid() if drafts else 0, self.url, self._started, at,
            at + self._fleet.gone_seconds, self.state, running=load.running, waiting=load.waiting, rate=self._rate(),
            drafts=drafts.held() if drafts else {}, trouble=drafts.trouble if drafts else None,
        )  # fmt: skip

    def _rate(self) -> float:
        finished, at = self._load.finished, time.monotonic()
        count, seconds = finished - self._finished, at - self._at
        self._finished, self._at = finished, at
        return round(count / seconds, 3) if seconds > 0 else 0.0
