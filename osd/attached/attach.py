"""Attends to the engines of a store: a follower for each."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from osd.attached.base import PROXIED, SGLANG, EngineFacts, ServingEngine
from osd.attached.vllm.engine import VllmEngine
from storage.access.engines import AttachedEngine
from storage.errors import OsdError
from storage.files.cipher import read_secret
from storage.settings import Settings
from storage.store import Store
from storage.versions.heirs import begin_line

if TYPE_CHECKING:
    from osd.attached.follower import EngineFollower

log = logging.getLogger(__name__)

KINDS = ("vllm", PROXIED, SGLANG)
Connect = Callable[[Settings, str, Mapping[str, Any]], ServingEngine]
"""Makes an engine's client, as :func:`connect` does."""


class Attachment:
    """The engines that this process attends to. Close it to let go of them; they serve on with what they have."""

    def __init__(self, store: Store, settings: Settings, connect: Connect) -> None:
        self.store, self.settings, self._connect = store, settings, connect
        self.holder = f"{socket.gethostname()}:{os.getpid()}"
        self.followers: dict[str, EngineFollower] = {}
        """By the engine's name."""
        self.troubles: dict[str, str] = {}
        """Why an engine is not attended to, by name."""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="osd-attach", daemon=True)

    def start(self) -> None:
        """Attend to what there is, then start the thread that looks for more."""
        self.look_for_engines()
        self._thread.start()

    def look_for_engines(self) -> None:
        """Take up engines that were added, or whose other process has gone, and let go of those that were removed."""
        only = self.settings.attach.engine
        engines = {engine.name: engine for engine in self.store.engines.list() if only in (None, engine.name)}
        for name in [name for name in self.followers if self._gone(name, engines.get(name))]:
            self.followers.pop(name).end()
        for name, engine in engines.items():
            if self.store.engines.hold(name, self.holder, self.settings.attach.lease_seconds):
                self._attach_to(engine)
            elif name in self.followers:
                self.followers.pop(name).close()

    def close(self) -> None:
        """Let go of the engines."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()
        for follower in self.followers.values():
            follower.end()
        self.store.engines.let_go(self.holder)

    def _gone(self, name: str, engine: AttachedEngine | None) -> bool:
        follower = self.followers[name]
        return engine is None or follower.changed or (engine.url, engine.draft) != (follower.url, follower.draft)

    def _attach_to(self, engine: AttachedEngine) -> None:
        if engine.name in self.followers:
            return
        from osd.attached.follower import EngineFollower  # it needs torch, and who looks at an engine does not

        try:
            client = self._connect(self.settings, engine.url, engine.facts)
            facts = client.probe()
            self._open_line(engine, facts)
            self.store.engines.note(engine.name, asdict(facts))
            self.followers[engine.name] = EngineFollower(self.store, self.settings, client, engine, facts)
            self.troubles.pop(engine.name, None)
            log.info("%s is attended to", engine.name, extra={"action": "engine_attached"})
        except OsdError as error:
            if self.troubles.get(engine.name) != str(error):
                log.warning("%s", error, extra={"action": "engine_not_attached"})
            self.troubles[engine.name] = str(error)

    def _open_line(self, engine: AttachedEngine, facts: EngineFacts) -> None:
        """Begin the draft's line for a target that succeeds the one that the engine served before, from the number 0
        that it had: its weights were replaced in place, or it was started again with another folder and
        attach.successors takes that. Raises BadInput for a folder that is no successor."""
        old, targets, follows = engine.facts.get("digest"), self.store.targets, self.settings.attach.successors
        in_place = facts.files is not None and engine.facts.get("files") == facts.files
        if follows and facts.digest == facts.files:
            from osd.models.vocabulary import folder_facts

            targets.arrive(facts.digest, facts.target, folder_facts(facts.target))
        if old in (None, facts.digest) or not (in_place or follows):
            return
        log.warning("%s serves another target now", engine.name, extra={"action": "target_moved"})
        targets.arrive(facts.digest, facts.target)
        if facts.digest not in targets.ancestors(old):  # else it is back, and its line goes on
            targets.succeed(old, facts.digest, in_place=in_place)
        known = self.store.versions.find(engine.draft, old)
        if known is not None and self.store.versions.find(engine.draft, facts.digest) is None:
            root = self.store.versions.lineage(known.id)[-1]
            begin_line(self.store, engine.draft, self.store.versions.folder(root), facts.digest)

    def _work(self) -> None:
        while not self._closing.wait(self.settings.attach.poll_seconds):
            try:
                self.look_for_engines()
            except OsdError as error:
                log.warning("no look at the engines: %s", error, extra={"action": "engines_look_failed"})


def connect(settings: Settings, url: str, facts: Mapping[str, Any]) -> ServingEngine:
    """Return the client of an engine. ``facts``: its ``kind``, and as far as they are known ``target``, ``draft`` and
    ``ranks``, as a probe found them or a person gave them.

    Raises BadInput, and BadSetting for a token that is not to be had.
    """
    named = settings.attach.api_key
    key = read_secret(named, "attach.api_key", "the engine's API key").strip() if named else None
    if facts.get("kind") == PROXIED:
        from osd.attached.vllm.stock import RestartHook, StockVllm

        restart = settings.attach.restart
        hook = RestartHook(restart, settings.attach.restart_seconds) if restart else None
        return StockVllm(url, key, facts.get("target"), facts.get("draft"), hook, facts.get("ranks") or ())
    if facts.get("kind") == SGLANG:
        from osd.attached.sglang import SglangEngine

        return SglangEngine(url, key, facts.get("target"), facts.get("draft"))
    token = read_secret(settings.attach.token, "attach.token", "the token that vLLM was started with").strip()
    return VllmEngine(url, token, key)
