"""Attends to the engines of a store: follows each with a replica, and takes what they hand over."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import asdict

from osd.attached.base import ServingEngine
from osd.attached.replica import Replica
from storage.access.engines import AttachedEngine
from storage.errors import OsdError
from storage.settings import Settings
from storage.store import Store

log = logging.getLogger(__name__)

Connect = Callable[[AttachedEngine], ServingEngine]
"""Makes an engine's client."""


class Attachment:
    """The engines that this process attends to. Close it to let go of them; they serve on with what they have."""

    def __init__(self, store: Store, settings: Settings, connect: Connect) -> None:
        self.store, self.settings, self._connect = store, settings, connect
        self.holder = f"{socket.gethostname()}:{os.getpid()}"
        self.replicas: dict[str, Replica] = {}
        """By the engine's name."""
        self.troubles: dict[str, str] = {}
        """Why an engine is not attended to, by name."""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="osd-attach", daemon=True)

    def begin(self) -> None:
        """Attend to what there is, then start the thread that looks for more."""
        self.look()
        self._thread.start()

    def look(self) -> None:
        """Take up engines that were added, or whose other process has gone, and let go of those that were removed."""
        engines = {engine.name: engine for engine in self.store.engines.list()}
        for name in [name for name in self.replicas if self._gone(name, engines.get(name))]:
            self.replicas.pop(name).end()
        for name, engine in engines.items():
            if self.store.engines.hold(name, self.holder, self.settings.attach.lease_seconds):
                self._take_up(engine)
            elif name in self.replicas:
                self.replicas.pop(name).close()

    def close(self) -> None:
        """Let go of the engines."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()
        for replica in self.replicas.values():
            replica.end()
        self.store.engines.let_go(self.holder)

    def _gone(self, name: str, engine: AttachedEngine | None) -> bool:
        replica = self.replicas[name]
        return engine is None or (engine.url, engine.draft) != (replica.url, replica.draft)

    def _take_up(self, engine: AttachedEngine) -> None:
        if engine.name in self.replicas:
            return
        try:
            client = self._connect(engine)
            facts = client.probe()
            self.store.engines.note(engine.name, asdict(facts))
            self.replicas[engine.name] = Replica(self.store, self.settings, client, engine.url, engine.draft, facts)
            self.troubles.pop(engine.name, None)
            log.info("%s is attended to", engine.name, extra={"action": "engine_attached"})
        except OsdError as error:
            if self.troubles.get(engine.name) != str(error):
                log.warning("%s", error, extra={"action": "engine_not_attached"})
            self.troubles[engine.name] = str(error)

    def _work(self) -> None:
        while not self._closing.wait(self.settings.attach.poll_seconds):
            try:
                self.look()
            except OsdError as error:
                log.warning("no look at the engines: %s", error, extra={"action": "engines_look_failed"})
