"""Takes harvested answers into the store: each batch once, however often it is sent, and only what may be kept."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter

from osd.attached.answers import HarvestBatch, HarvestedAnswer
from osd.attached.draft_pass import DraftPass
from osd.attached.harvest import HarvestedFrom, outcome_of, samples_of
from osd.attached.late_scoring import LateScoring
from osd.attached.replica import Replica
from osd.attached.scorer import Scorer
from osd.recording.redaction import Redactor, load_hook
from storage.errors import StoreError
from storage.records import DEFAULT_ROUTE, DEFAULT_TENANT, RequestSamples, TokenKind
from storage.settings import Settings
from storage.store import Store

log = logging.getLogger(__name__)


class UnknownSender(StoreError):
    """{engine} is not attached to by this process; `osd engines list` shows who attends to it."""


class IntakeCounters:
    """What was taken, by engine, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.batches = self._counter("batches", "Batches of answers taken.")
        self.answers = self._counter("answers", "Answers taken.")
        self.unknown = self._counter("unknown_answers", "Answers left: no version of the draft is what drafted them.")
        self.positions = self._counter("positions", "Positions kept for learning.")
        self.refused = self._counter("refused_tokens", "Refused tokens that are known.")
        self.unread = self._counter("unread_outputs", "Outputs without distributions that the target did not read.")

    def _counter(self, name: str, means: str) -> Counter:
        return Counter(f"osd_harvest_{name}", means, ["engine"], registry=self.registry)


class Intake:
    """Turns batches into samples and outcomes. Batches wait for each other."""

    def __init__(
        self, store: Store, settings: Settings, replicas: Mapping[str, Replica], tokenizer: Any = None,
        scorer: Scorer | None = None,
    ) -> None:  # fmt: skip
        """``replicas`` are looked up by engine name at each batch; ``tokenizer`` gives the redaction hook text;
        ``scorer`` reads what comes without distributions."""
        self._store, self._replicas, self._k = store, replicas, settings.storage.top_k
        self._redactor = Redactor(load_hook(settings.privacy.redact), tokenizer)
        self._recover = DraftPass(store, settings.attach.device)
        self._lock = threading.Lock()
        self.counts = IntakeCounters()
        self._late = None if scorer is None else LateScoring(store, scorer, self._k, settings.attach.device, self._add)

    def close(self) -> None:
        """Stop reading what came without distributions."""
        if self._late is not None:
            self._late.close()

    def take(self, batch: HarvestBatch) -> None:
        """Take a batch; a second time changes nothing. Raises UnknownSender, StoreError."""
        replica = self._replicas.get(batch.engine)
        if replica is None:
            raise UnknownSender(engine=batch.engine)
        with self._lock:
            self._take(batch, replica)

    def serves(self, engine: str) -> str | None:
        """Return the digest of what an engine drafts with now; None while that is not known."""
        replica = self._replicas.get(engine)
        return None if replica is None else replica.serves

    def _take(self, batch: HarvestBatch, replica: Replica) -> None:
        tenants, routes = self._tenants(), self._routes(replica.draft)
        known = [
            (answer, origin) for answer in batch.answers if (origin := self._origin(answer, replica, tenants, routes))
        ]
        samples = [one for answer, origin in known for one in self._samples(answer, origin)]
        if kept := self._redactor(samples):
            self._store.samples.add(kept)
        new = self._store.outcomes.add([outcome_of(*one) for one in known], batch.engine, batch.batch, batch.done)
        if new or not known:
            replica.finished += len(known)
            self._count(batch, len(known))
            self._count_positions(batch.engine, kept)
            self._read_later(batch.engine, known)

    def _read_later(self, engine: str, known: Sequence[tuple[HarvestedAnswer, HarvestedFrom]]) -> None:
        """Leave to the target what the engine gave no distributions of."""
        for answer, origin in known:
            for number, choice in enumerate(answer.choices):
                if not choice.top_ids and not (self._late and self._late.put(engine, answer, number, origin)):
                    self.counts.unread.labels(engine).inc()

    def _add(self, engine: str, samples: RequestSamples) -> None:
        """Keep what was read later."""
        with self._lock:
            if kept := self._redactor([samples]):
                self._store.samples.add(kept)
                self._count_positions(engine, kept)

    def _count(self, batch: HarvestBatch, known: int) -> None:
        counts, engine = self.counts, batch.engine
        counts.batches.labels(engine).inc()
        counts.answers.labels(engine).inc(known)
        counts.unknown.labels(engine).inc(len(batch.answers) - known)

    def _count_positions(self, engine: str, kept: Sequence[RequestSamples]) -> None:
        counts = self.counts
        counts.positions.labels(engine).inc(sum(len(one) for one in kept))
        counts.refused.labels(engine).inc(sum(int((one.kinds == TokenKind.REJECTED).sum()) for one in kept))

    def _samples(self, answer: HarvestedAnswer, origin: HarvestedFrom) -> list[RequestSamples]:
        made = [samples_of(answer, number, origin, self._k, self._recover) for number in range(len(answer.choices))]
        return [one for one in made if one is not None]

    def _origin(
        self, answer: HarvestedAnswer, replica: Replica, tenants: Mapping[str, str], routes: list[str]
    ) -> HarvestedFrom | None:
        """Return where an answer came from; None where no version of the draft is what drafted."""
        after = replica.version_of(answer.version_after)
        if after is None:
            return None
        route = answer.route if answer.route in routes else (routes or [DEFAULT_ROUTE])[0]
        tenant = tenants.get(answer.key or "") or answer.tenant or DEFAULT_TENANT
        whole = answer.version == answer.version_after
        return HarvestedFrom(route, tenant, after.id, whole, replica.facts.greedy_drafts, replica.facts.digest)

    def _tenants(self) -> dict[str, str]:
        return {key.hash: key.tenant for key in self._store.keys.list()}

    def _routes(self, draft: str) -> list[str]:
        """Return the routes that the draft serves, the default one first."""
        names = [route.name for route in self._store.routes.list() if draft in route.drafts]
        return sorted(names, key=lambda name: name != DEFAULT_ROUTE)
