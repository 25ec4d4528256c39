"""Takes harvested answers into the store: each batch once, however often it is sent, and only what may be kept.

Answers that an engine hands over without distributions are read by the target, in a thread of its own: whoever hands
over is answered at once, and a target that reads more slowly than others write only leaves some of them out.
"""

from __future__ import annotations

import hashlib
import logging
import queue
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import starmap
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter

from osd.attached.follower import EngineFollower
from osd.attached.passes import DraftPass, Scorer
from osd.attached.samples import HarvestBatch, HarvestedAnswer, HarvestedFrom, no_distributions, outcome_of, samples_of
from storage.errors import StoreError
from storage.records import DEFAULT_ROUTE, DEFAULT_TENANT, RequestSamples, Route, TokenKind
from storage.settings import Settings
from storage.store import Store

log = logging.getLogger(__name__)

WAITING = 256
"""Answers that wait to be read by the target at most."""


class UnknownSender(StoreError):
    """{engine} is not attached to by this process; `osd engines list` shows who attends to it."""


class IntakeCounters:
    """What was taken, by engine, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.batches = self._counter("batches", "Batches of answers taken.")
        self.answers = self._counter("answers", "Answers taken.")
        self.unknown = self._counter("unknown_answers", "Answers left: no version of the draft is what drafted them.")
        self.spanning = self._counter("spanning_answers", "Answers not learned from: the target's weights changed.")
        self.positions = self._counter("positions", "Positions kept for learning.")
        self.refused = self._counter("refused_tokens", "Refused tokens that are known.")
        self.bad = self._counter("bad_answers", "Answers left: what came is no answer.")
        self.unread = self._counter("unread_outputs", "Outputs without distributions that the target did not read.")
        images = "Positions of images, videos and sound: nothing is learned there."
        self.multimodal = self._counter("multimodal_positions", images)

    def _counter(self, name: str, means: str) -> Counter:
        return Counter(f"osd_harvest_{name}", means, ["engine"], registry=self.registry)


class Intake:
    """Turns batches into samples and outcomes. Batches wait for each other."""

    def __init__(
        self, store: Store, settings: Settings, followers: Mapping[str, EngineFollower], scorer: Scorer | None = None
    ) -> None:
        """``followers`` are looked up by engine name at each batch; ``scorer`` reads what comes without distributions.
        Raises BadSetting for a hook that cannot be loaded, NothingReadsTokens."""
        self._store, self._followers, self._k = store, followers, settings.storage.top_k
        self.texts_alone = settings.learn.teacher != "recorded"
        """Whether texts are enough: the trainer's target reads them again."""
        self._redactor = store.samples.redactor.load()
        self._recover = DraftPass(store, settings.attach.device)
        self._lock = threading.Lock()
        self.counts = IntakeCounters()
        self._late = None if scorer is None else LateScoring(store, scorer, self._k, settings.attach.device, self._add)

    def close(self) -> None:
        """Stop reading what came without distributions."""
        if self._late is not None:
            self._late.close()

    def take_batch(self, batch: HarvestBatch) -> None:
        """Take a batch; a second time changes nothing. Raises UnknownSender, StoreError."""
        follower = self._followers.get(batch.engine)
        if follower is None:
            raise UnknownSender(engine=batch.engine)
        with self._lock:
            self._keep(batch, follower)

    def serves(self, engine: str) -> str | None:
        """Return the digest of what an engine drafts with now; None while that is not known."""
        follower = self._followers.get(engine)
        return None if follower is None else follower.serves

    def _keep(self, batch: HarvestBatch, follower: EngineFollower) -> None:
        tenants, routes = self._tenants(), AnswerRoutes(self._store, follower.draft)
        known = [
            (answer, origin) for answer in batch.answers if (origin := self._origin(answer, follower, tenants, routes))
        ]
        stamps = follower.facts.first_state is not None
        of_one = [one for one in known if one[0].of_one_target(stamps)]
        taught = [one for one in of_one if not self.texts_alone or one[0].adapter is None]  # no teacher has adapters
        samples = [one for answer, origin in taught for one in self._samples(answer, origin)]
        if kept := self._redactor(samples):
            self._store.samples.add(kept)
        new = self._store.outcomes.add([outcome_of(*one) for one in known], batch.engine, batch.batch, batch.done)
        if new or not known:
            self._count(batch, len(known))
            self.counts.spanning.labels(batch.engine).inc(len(known) - len(of_one))
            self._count_positions(batch.engine, kept)
            self.counts.multimodal.labels(batch.engine).inc(sum(starmap(_multimodal, known)))
            self._read_later(batch.engine, taught)

    def _read_later(self, engine: str, known: Sequence[tuple[HarvestedAnswer, HarvestedFrom]]) -> None:
        """Leave to the target what the engine gave no distributions of, where they are needed."""
        for answer, origin in known:
            for number, choice in enumerate(answer.choices):
                if choice.top_ids:
                    continue
                shown = origin.is_multimodal([*answer.prompt, *choice.tokens])
                if not shown and (self.texts_alone or self._later(engine, answer, number, origin)):
                    continue
                self.counts.unread.labels(engine).inc()

    def _later(self, engine: str, answer: HarvestedAnswer, number: int, origin: HarvestedFrom) -> bool:
        return self._late is not None and self._late.read_later(engine, answer, number, origin)

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
        counts.bad.labels(engine).inc(len(batch.bad))
        if batch.bad:
            log.warning("%s sent %d bad answers: %s", engine, len(batch.bad), batch.bad[0],
                        extra={"action": "bad_answers"})  # fmt: skip

    def _count_positions(self, engine: str, kept: Sequence[RequestSamples]) -> None:
        counts = self.counts
        counts.positions.labels(engine).inc(sum(len(one) for one in kept))
        counts.refused.labels(engine).inc(sum(int((one.kinds == TokenKind.REJECTED).sum()) for one in kept))

    def _samples(self, answer: HarvestedAnswer, origin: HarvestedFrom) -> list[RequestSamples]:
        score, numbers = no_distributions if self.texts_alone else None, range(len(answer.choices))
        made = [samples_of(answer, number, origin, self._k, self._recover, score) for number in numbers]
        return [one for one in made if one is not None]

    def _origin(
        self, answer: HarvestedAnswer, follower: EngineFollower, tenants: Mapping[str, str], routes: AnswerRoutes
    ) -> HarvestedFrom | None:
        """Return where an answer came from; None where no version of the draft is what drafted."""
        after = follower.version_of(answer.version_after)
        if after is None or (answer.target is not None and follower.facts.first_state is None):
            return None
        tenant = tenants.get(answer.key or "") or answer.tenant or DEFAULT_TENANT
        whole = answer.version == answer.version_after
        target = follower.facts.target_of(answer.target) if answer.target else follower.facts.digest
        drafted, placeholders = follower.facts.greedy_drafts, frozenset(follower.facts.placeholders)
        return HarvestedFrom(routes.of(answer), tenant, after.id, whole, drafted, target, placeholders)

    def _tenants(self) -> dict[str, str]:
        return {key.hash: key.tenant for key in self._store.keys.list()}


class AnswerRoutes:
    """The routes that a batch's answers are kept under."""

    def __init__(self, store: Store, draft: str) -> None:
        self._store, self._draft, self._all = store, draft, store.routes.list()
        mine = sorted(self._all, key=lambda route: (route.name != DEFAULT_ROUTE, "model" in route.matches))
        self._mine = [route.name for route in mine if draft in route.drafts]

    def of(self, answer: HarvestedAnswer) -> str:
        """Return an answer's route: an adapter's is that which goes by its ``model`` and by nothing else, whichever
        draft it leads to, or one of its name that goes by no model; where there is neither, one is made. Another's
        is that of its header, if the draft serves that."""
        if answer.adapter:
            return self._of_adapter(answer.adapter)
        return answer.route if answer.route in self._mine else (self._mine or [DEFAULT_ROUTE])[0]

    def _of_adapter(self, adapter: str) -> str:
        for route in self._all:
            models = route.matches.get("model", ())
            if (adapter in models and len(route.matches) == 1) or (route.name == adapter and not models):
                return route.name
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", adapter).strip(".-")[:64] or "adapter"
        if any(route.name == name for route in self._all):
            name = f"{name[:55]}-{hashlib.sha256(adapter.encode()).hexdigest()[:8]}"
        self._all.append(self._store.routes.add(Route(name, self._draft, {"model": [adapter]}), "osd attach"))
        return name


def _multimodal(answer: HarvestedAnswer, origin: HarvestedFrom) -> int:
    """Return how many positions of an answer stand for images and the like."""
    texts = [answer.prompt, *(choice.tokens for choice in answer.choices)]
    return sum(token in origin.placeholders for text in texts for token in text)


class _Unread(NamedTuple):
    answer: HarvestedAnswer
    number: int
    """The choice that is to be read."""
    origin: HarvestedFrom


class LateScoring:
    """The thread. Close it to stop; answers that wait then are left out."""

    def __init__(
        self, store: Store, scorer: Scorer, k: int, device: str, keep: Callable[[str, RequestSamples], None]
    ) -> None:
        """``k``: likeliest tokens that are kept; ``device``: where the draft runs that recovers refused tokens;
        ``keep`` takes an engine's name and the samples of one of its answers."""
        self._scorer, self._k, self._keep, self._recover = scorer, k, keep, DraftPass(store, device)
        self._waiting: queue.Queue[tuple[str, _Unread] | None] = queue.Queue(WAITING)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="osd-late-scoring", daemon=True)
        self._thread.start()

    def read_later(self, engine: str, answer: HarvestedAnswer, number: int, origin: HarvestedFrom) -> bool:
        """Let an answer's choice be read later; return False where it cannot be: the target is another or has an
        adapter, the text is too long, or too many wait."""
        long = len(answer.prompt) + len(answer.choices[number].tokens) > self._scorer.length
        if long or answer.adapter or origin.target != self._scorer.target:
            return False
        try:
            self._waiting.put_nowait((engine, _Unread(answer, number, origin)))
        except queue.Full:
            return False
        return True

    def close(self) -> None:
        """Stop after the answer that is read now."""
        self._closing.set()
        with self._waiting.mutex:
            self._waiting.queue.clear()
        self._waiting.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (given := self._waiting.get()) is not None and not self._closing.is_set():
            engine, unread = given
            try:
                made = samples_of(*unread, self._k, self._recover, self._scorer)
                assert made is not None
                self._keep(engine, made)
            except Exception as error:  # whatever an answer holds, the next one is read
                log.warning("an answer was not read: %s", error, extra={"action": "late_scoring_failed"})
