"""Answers that an engine hands over without distributions are read by the target, in a thread of its own: whoever hands
over is answered at once, and a target that reads more slowly than others write only leaves some of them out."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import NamedTuple

from osd.attached.answers import HarvestedAnswer
from osd.attached.draft_pass import DraftPass
from osd.attached.harvest import HarvestedFrom, samples_of
from osd.attached.scorer import Scorer
from storage.errors import OsdError
from storage.records import RequestSamples
from storage.store import Store

log = logging.getLogger(__name__)

WAITING = 256
"""Answers that wait to be read at most."""


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

    def put(self, engine: str, answer: HarvestedAnswer, number: int, origin: HarvestedFrom) -> bool:
        """Let an answer's choice be read later; return False where it cannot be: the target is another, the text too
        long, or too many wait."""
        long = len(answer.prompt) + len(answer.choices[number].tokens) > self._scorer.length
        if long or origin.target != self._scorer.target:
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
            except (OsdError, RuntimeError) as error:  # the latter: torch has no memory left
                log.warning("an answer was not read: %s", error, extra={"action": "late_scoring_failed"})
