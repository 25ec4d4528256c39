"""One engine as a server of the store: it is listed, follows its draft's versions, tries canaries, and gets the
current version anew when it was started again."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from urllib.parse import urlsplit

from osd.attached.base import (
    EngineError,
    EngineFacts,
    EngineGain,
    EngineRefused,
    EngineUnreachable,
    RankVersion,
    ServingEngine,
)  # fmt: skip
from osd.attached.vllm.plugin.osd_vllm.weights import weights_digest
from osd.hotswap.canary import CanaryFollower
from osd.hotswap.export import export, lacks_rows
from storage import records
from storage.access.engines import AttachedEngine
from storage.access.processes import ServerState, ServingProcess
from storage.errors import DraftUnsound
from storage.records import DraftVersion, VersionState
from storage.settings import Settings
from storage.store import Store
from storage.versions.feature_kinds import FEATURE_KINDS

log = logging.getLogger(__name__)

UNSERVED = (VersionState.CANDIDATE, VersionState.REJECTED)
"""States of versions that no engine can have."""
GAIN_LOOKS = 10
"""Looks at an engine from one question what drafting gains, and what became of answers, to the next."""
MERGED = "merged"
"""Folder of the store's directory for merged versions; it may be deleted at any time."""


class EngineFollower(CanaryFollower[DraftVersion]):
    """An engine and the draft that it serves."""

    def __init__(
        self, store: Store, settings: Settings, client: ServingEngine, engine: AttachedEngine, facts: EngineFacts
    ) -> None:
        """Start to follow. ``facts`` are what a probe found just now."""
        super().__init__(store, settings, facts.name)
        self.client, self.facts = client, facts
        self.url, self.draft = engine.url, engine.draft
        self.line = store.versions.current(self.draft, facts.digest).draft
        """The draft's line of versions for the engine's target."""
        self.started = records.now()
        self.away = False
        """Whether the engine was not reached at the last look."""
        self.changed = False
        """Whether it was started again with speculation, where it had none, or without; or its target is another."""
        self._every = settings.attach.poll_seconds
        self._gone_seconds = settings.fleet.gone_seconds
        self._digests: dict[str, str] = {}
        self._publishing = False
        self.gain: EngineGain | None = None
        """What drafting gains, as it said last."""
        self._gain_at = 0.0
        self._noted: str | None = None
        """The fault that was told last; None where the last look went well."""
        if found := self.version_of(facts.serves):
            self.serving[self.line] = found
        self._beat()
        self.begin()
        self._publishing = False

    def names(self) -> Sequence[str]:
        """Return its draft's line; nothing where it runs without speculation, so that nothing can be published."""
        return [self.line] if self.facts.speculates else []

    @property
    def serves(self) -> str | None:
        """Digest of the weights that it drafts with; None while that is not known."""
        serving = self.serving.get(self.line)
        return None if serving is None or self.away or self._publishing else self._digest(serving)

    def load(self, version: DraftVersion) -> DraftVersion:
        """Publish a version to the engine, and read back that every rank has it. Raises DraftUnsound where the engine
        refuses it, EngineUnreachable."""
        folder = servable_folder(self.store, version)
        digest = self._digest(version)
        self._publishing = True  # until what it drafts with by then is noted
        try:
            ranks = self.client.publish(folder, digest, version.id)
        except EngineRefused as error:
            raise DraftUnsound(version=version.id, reason=str(error)) from None
        self._require_everywhere(version, digest, ranks)
        self.facts = replace(self.facts, ranks=tuple(ranks))
        self._note_facts()
        log.info("%s drafts with %s", self.worker, version.id, extra={"action": "published", "version": version.id})
        return version

    def version_of(self, digest: str | None) -> DraftVersion | None:
        """Return the draft's version with this digest of weights: of several, the one that serves; None for none. To an
        engine without speculation belongs the version that it would draft with."""
        if not self.facts.speculates:
            return self.store.versions.current(self.line)
        serving = self.serving.get(self.line)
        if digest is None or (serving and self._digest(serving) == digest):
            return serving if digest else None
        kept = reversed(self.store.versions.list(self.line, deleted=False))
        newest_first = [one for one in kept if one.state not in UNSERVED]
        return next((version for version in newest_first if self._digest(version) == digest), None)

    def _require_everywhere(self, version: DraftVersion, digest: str, ranks: Sequence[RankVersion]) -> None:
        wrong = [rank.rank for rank in ranks if rank.sha256 != digest]
        if wrong or not ranks:
            raise DraftUnsound(version=version.id, reason=f"ranks {wrong} of {self.worker} do not have it")

    def _digest(self, version: DraftVersion) -> str:
        if version.id not in self._digests:
            self._digests[version.id] = weights_digest(servable_folder(self.store, version))
        return self._digests[version.id]

    def _poll(self) -> None:
        try:
            ranks = self.client.served()
            moved = any(rank.target and self._is_other(rank.target) for rank in ranks)
            self.changed = moved or self.facts.speculates != any(rank.sha256 for rank in ranks)
            self._notice_restart(ranks)
            self.away = False
            if moved:
                return
            self._ask_facts()
            super()._poll()
        except EngineError as error:
            self._note(error)
            return
        finally:
            if self.take_loaded():
                self._tell(self.line, self.serving[self.line])
            self._publishing = False
        if self.troubles.get(self.line) == self._noted:
            self.troubles.pop(self.line, None)
        self._noted = None
        self._trial.judge_due()
        self._beat()

    def _note(self, error: EngineError) -> None:
        """Tell of an engine's fault once; one that does not answer goes off the list of servers by itself."""
        if self._noted != str(error):
            log.warning("%s", error, extra={"action": "engine_away"})
        self._noted = self.troubles[self.line] = str(error)
        if isinstance(error, EngineUnreachable):
            self.away = True
        else:
            self._beat()

    def _notice_restart(self, ranks: Sequence[RankVersion]) -> None:
        """Forget what serves where the engine has something else by now: it was started again, or somebody else has
        published to it."""
        serving = self.serving.get(self.line)
        if serving and any(rank.sha256 != self._digest(serving) for rank in ranks):
            log.warning(
                "%s does not draft with %s any more", self.worker, serving.id, extra={"action": "engine_restarted"}
            )
            del self.serving[self.line]
            self._refused.discard(serving.id)

    def _is_other(self, state: str) -> bool:
        """Return whether the target in this state of its weights is another than the one that is followed, or may be:
        the first look at it was later than the probe."""
        return self.facts.first_state is None or self.facts.target_of(state) != self.facts.digest

    def _ask_facts(self) -> None:
        """Note now and then what drafting gains, and what became of answers."""
        if records.now() < self._gain_at:
            return
        self._gain_at, self.gain = records.now() + GAIN_LOOKS * self._every, self.client.gain()
        self.facts = replace(self.facts, harvest=self.client.harvest())
        self._note_facts()

    def _note_facts(self) -> None:
        self.store.engines.note(self.worker, asdict(self.facts) | {"gain": self.gain and asdict(self.gain)})

    def _beat(self) -> None:
        """List the engine among the store's servers; one that cannot be reached goes off the list by itself."""
        parts, serving = urlsplit(self.url), self.serving.get(self.line)
        known = {"version": serving.id, "digest": serving.digest} if serving else {}
        self.store.servers.beat(ServingProcess(
            id=self.worker, host=parts.hostname or "", pid=0, url=self.url, started_at=self.started,
            heartbeat_at=records.now(), gone_at=records.now() + self._gone_seconds, state=ServerState.SERVING,
            drafts={self.line: known}, trouble=self.troubles.get(self.line),
        ))  # fmt: skip

    def end(self) -> None:
        """Stop following, and take the engine off the list; it goes on serving what it has."""
        self.close()
        self.store.canaries.let_go(self.worker)
        self.store.servers.end(self.worker)


def servable_folder(store: Store, version: DraftVersion) -> Path:
    """Return a local folder with a version's full weights; a feature draft's with the rows of the target's output layer
    that engines need.

    Raises WeightsDamaged, StoreWriteFailed, PlaceUnreachable.
    """
    folder = store.versions.folder(version)
    if version.kind != "lora" and not (version.kind in FEATURE_KINDS and lacks_rows(version.kind, folder)):
        return folder
    place = store.directory / MERGED / version.id
    if not place.is_dir():
        place.parent.mkdir(mode=0o700, exist_ok=True)
        export(store, version.id, place)
    return place
