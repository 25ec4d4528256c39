"""Writes what was recorded to the store; while the store is away, to this machine's disk, and from there once it is
back.

A store that does not answer is left alone for a second, then two, up to half a minute: every try may cost its time-out,
and the recorder's memory fills meanwhile. Spilled files are taken in between flushes, each file as often as it takes
and with effect once (:mod:`storage.replay.spill`); files that an earlier process left are taken in too.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from storage.errors import CannotDecrypt, DatabaseUnreachable, OsdError, PlaceUnreachable, StoreWriteFailed
from storage.files.files import remove, seized, writing
from storage.records import Outcome, RequestSamples, new_id
from storage.redaction import Redacted
from storage.replay.spill import SAMPLES, Spill, Totals
from storage.settings import Settings
from storage.store import Store

log = logging.getLogger(__name__)

AWAY = (DatabaseUnreachable, PlaceUnreachable, StoreWriteFailed)
"""Errors that waiting may mend."""
SHORTEST, LONGEST = 1.0, 30.0
"""Bounds of the seconds between two tries."""
SLICE = 1.0
"""Seconds of taking in, after which the recorder looks at what came meanwhile."""
TRIES = 5
"""Tries after which a file is given up that the store refuses for another reason than being away."""


Kept = Callable[[Sequence[RequestSamples], str | None], None]


class StoreWriter:
    """Writes what the recorder finished. Used by one thread at a time."""

    def __init__(self, store: Store, settings: Settings, worker: str, kept: Kept = lambda batch, segment: None) -> None:
        """Prepare the spill folder. ``kept`` is called with samples that came into the store, and their segment."""
        self.store, self.worker, self._kept = store, worker, kept
        self.spill = Spill(store.directory / "spill", settings.serve.spill_mb << 20, store.samples.files.cipher)
        self.spilled = self.lost_positions = self.lost_outcomes = 0
        """Requests whose samples went to the disk; positions and outcomes that found no room there either."""
        self._rest, self._free_at, self._look_at = SHORTEST, 0.0, 0.0
        self._known: list[str] = []
        self._tries: dict[Path, int] = {}
        self._waits = bool(self.spill.waiting())
        with suppress(OsdError):
            store.samples.tenants.learnable(())  # so consent is known while the store is away

    @property
    def due(self) -> float | None:
        """Monotonic time at which :meth:`catch_up` should be called; None where nothing waits."""
        return max(self._free_at, self._look_at) if self._waits else None

    def keep(self, samples: Redacted, outcomes: Sequence[Outcome]) -> None:
        """Write to the store or onto the disk; count what neither takes."""
        if samples and not self._sent(lambda: self._add_samples(samples)):
            self._keep_samples(samples)
        totals = Totals(list(outcomes), self.worker, new_id())
        if outcomes and not self._sent(lambda: self._add(totals)):
            self._keep_outcomes(totals)
        elif outcomes:
            self._known.append(totals.batch)

    def catch_up(self) -> None:
        """Take in spilled files, for a second at most, if it is time."""
        began = time.monotonic()
        if self.due is None or began < self.due:
            return
        for path in self._left():
            if not self._sent(partial(self._take, path)) or time.monotonic() - began > SLICE:
                return
        self._waits, self._look_at = bool(self._left()), time.monotonic() + SHORTEST

    def _left(self) -> list[Path]:
        return [path for path in self.spill.waiting() if self._tries.get(path, 0) < TRIES]

    def _sent(self, action: Callable[[], object]) -> bool:
        """Return whether the store took it; during back-off the store is not asked."""
        if time.monotonic() < self._free_at:
            return False
        try:
            action()
        except OsdError as error:
            log.error("the store did not take what was recorded: %s", error, extra={"action": "record_failed"})
            self._free_at = time.monotonic() + self._rest
            self._rest = min(LONGEST, 2 * self._rest)
            return False
        self._rest = SHORTEST
        return True

    def _add_samples(self, samples: Sequence[RequestSamples]) -> None:
        self._kept(samples, self.store.samples.add(samples))

    def _add(self, totals: Totals) -> None:
        """Add totals to the store, which may forget the batches known to be added: they are not sent again."""
        self.store.outcomes.add(totals.outcomes, totals.worker, totals.batch, self._known)
        self._known = []

    def _keep_samples(self, samples: Redacted) -> None:
        """Spill samples of tenants known to allow it; the store asks again when it takes them in."""
        allowed = self.store.samples.tenants.last_known({each.tenant for each in samples})
        samples = Redacted(each for each in samples if each.tenant in allowed)
        if samples and self._spilled(lambda: self.spill.keep_samples(samples)):
            self.spilled += len(samples)
        else:
            self.lost_positions += sum(len(each) for each in samples)

    def _keep_outcomes(self, totals: Totals) -> None:
        if not self._spilled(lambda: self.spill.keep_outcomes(totals)):
            self.lost_outcomes += len(totals.outcomes)

    def _spilled(self, write: Callable[[], bool]) -> bool:
        try:
            kept = write()
            reason = "serve.spill_mb is used up"
        except OsdError as error:
            kept, reason = False, str(error)
        if not kept:
            log.error("what was recorded is lost: %s", reason, extra={"action": "spill_failed"})
        self._waits |= kept
        return kept

    def _take(self, path: Path) -> None:
        """Take a spilled file into the store and remove it. Raises the errors in AWAY."""
        with suppress(FileNotFoundError), seized(path) as free:
            if not free:
                return
            try:
                self._take_in(path)
            except AWAY:
                raise
            except OsdError as error:
                self._refused(path, error)

    def _take_in(self, path: Path) -> None:
        totals = None
        if path.name.endswith(SAMPLES):
            self._add_samples(self.spill.read_samples(path))
        else:
            self._add(totals := self.spill.read_outcomes(path))
        with writing(path):
            remove(path)
        if totals:
            self._known.append(totals.batch)
        log.info("%s was taken in", path.name, extra={"action": "caught_up"})

    def _refused(self, path: Path, error: OsdError) -> None:
        """Count a failed try; a file that cannot be decrypted is left for whoever brings the key."""
        locked = isinstance(error, CannotDecrypt)
        self._tries[path] = TRIES if locked else self._tries.get(path, 0) + 1
        if self._tries[path] >= TRIES:
            kept = path if locked else self.spill.refuse(path)
            log.error("%s was not taken in: %s", kept, error, extra={"action": "spill_refused"})
