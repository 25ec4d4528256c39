"""Sends harvested answers to the collector from a thread of its own: nothing that serves ever waits for it.

Answers wait in a bounded queue and leave in batches. While the collector is away they are spooled on disk, within a
budget, and sent once it is back; what finds no place is dropped and counted. Each answer has an id of its own, by which
the collector takes it once, however often it is sent. What waits when the server ends is sent or spooled before it has.
"""

from __future__ import annotations

import atexit
import gzip
import hashlib
import itertools
import json
import logging
import os
import queue
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from .options import Options, options

Json = dict[str, Any]
log = logging.getLogger("osd.vllm")
ROUTE, SERVING = "/v1/osd/harvest", "/v1/osd/serving/"
BATCH = 64
"""Answers of a batch at most."""
WAIT = 0.5
"""Seconds that an answer waits for others."""
PATIENCE = 10.0
"""Seconds until the collector must have taken a batch."""
ASKED = 5.0
"""Seconds until it must have said what it wants."""
AGAIN = 2.0
"""Seconds after a failure until the next try."""
APART = 16
"""Answers of which one is asked for text alone, where a scheduler class measures steps."""
ROWS = 64
"""Elements of a list that are encoded at once: with 20 numbers in each, a millisecond's worth."""
REFUSED = (400, 413, 415, 422)
"""Statuses that mean that the batch itself is wrong."""


class Sender:
    """Takes records without ever waiting, for the plugin and for `osd attach --proxy`."""

    def __init__(self, options: Options) -> None:
        self.options, self.k = options, options.top_k
        self.shows_metrics, self.tenant_header = options.shows_metrics, options.tenant_header
        self.counts: Counter[str] = Counter()
        """Answers ``taken``, ``sent``, ``spooled``, ``dropped``, ``skipped`` (not all of it was seen), ``failed``, and
        ``counted``: those without distributions that were wanted, beyond OSD_VLLM_POSITIONS or because a client asked
        for its own."""
        self.engine = options.engine or "vllm"
        """This vLLM's name."""
        self.harvests = False
        """Whether the middleware is in place."""
        self.serving: str | None = None
        """Digest of the draft that serves; None until somebody has asked the workers, and where ranks differ."""
        self.spent, self._began = 0.0, time.monotonic()
        """Processor seconds that the middleware took, of the process that answers clients."""
        self.texts_alone = False
        """Whether the collector learns from texts alone: no likeliest tokens are asked for, and every text is whole."""
        self.target: str | None = None
        """State of the target's weights at the last look; None where nobody looks, or the workers did not say."""
        self.first_target: str | None = None
        """That at the first look."""
        self._unproven: list[Json] = []
        """Records that ended after the last look at the target."""
        self._answers = itertools.count(1)
        self._queue: queue.Queue[Json] = queue.Queue(options.queue)
        self._spool = Spool(options.spool, options.spool_mb << 20) if options.spool else None
        self._context = ssl.create_default_context()
        self._next = 0.0
        self._left, self._filled = float(options.positions), time.monotonic()
        self._done: list[str] = []
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="osd-harvest", daemon=True)
        self._thread.start()
        atexit.register(self.close)  # for a server that calls no lifespan

    def close(self) -> None:
        """Send or spool what waits, and end. PATIENCE + AGAIN seconds are the most that this may take: what a collector
        takes without an answer is spooled, too."""
        atexit.unregister(self.close)
        for record in self._unproven:  # nobody knows any more whether the target stayed: it says no second state
            self._put(record)
        self._unproven, self._closing = [], True
        self._thread.join(PATIENCE + AGAIN)

    def depth(self) -> int:
        """Return how many of the likeliest tokens the next answer is asked for: none where texts are enough,
        while positions of a second to come were harvested already, and for one answer of APART. vLLM takes time for
        each of them, and by these few it is told how much."""
        if self.texts_alone or (self.options.gamma and next(self._answers) % APART == 0):
            return 0
        most, now = self.options.positions, time.monotonic()
        if not most:
            return self.k
        self._left, self._filled = min(float(most), self._left + most * (now - self._filled)), now
        return self.k if self._left > 0 else 0

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count the processor time of a block as taken by harvesting."""
        began = time.thread_time()
        try:
            yield
        finally:
            self.spent += time.thread_time() - began

    def busy(self) -> float:
        """Return the share of its process's time that the middleware took so far."""
        return self.spent / (time.monotonic() - self._began)

    def salt(self, version: str | None) -> str | None:
        """Return what tells blocks of the prefix cache apart: the draft, and the target where it was replaced."""
        if self.target in (None, self.first_target):
            return version
        return hashlib.sha256(f"{version} {self.target}".encode()).hexdigest()

    def saw_target(self, state: str | None, asked: float) -> None:
        """Note the state of the target's weights, asked for at ``asked`` (Unix seconds), and let go of the records that
        had ended by then: they say the states before their beginning and after their end."""
        self.target, self.first_target = state, self.first_target or state
        proven = [record for record in self._unproven if record["ended"] <= asked]
        self._unproven = [record for record in self._unproven if record["ended"] > asked]
        for record in proven:
            self._put({**record, "target_after": state})

    def put(self, record: Json) -> None:
        """Take a record, or drop it where too many wait. One that names a state of the target waits for the next look
        at it."""
        if record.get("target") is not None and not self._closing and len(self._unproven) < self.options.queue:
            self._unproven.append(record)
        else:
            self._put(record)

    def _put(self, record: Json) -> None:
        harvested = sum(len(choice["top_ids"]) for choice in record["choices"])
        self._left -= harvested
        self.counts["counted"] += not (harvested or self.texts_alone)
        try:
            self._queue.put_nowait(record)
            self.counts["taken"] += 1
        except queue.Full:
            self.counts["dropped"] += 1

    def ask_collector(self) -> str | None:
        """Ask the collector whether texts are enough, and return the digest of what drafts here, as far as it knows.
        Raises whatever comes of one that is away or says something else; what it said last holds then."""
        if self.options.collector is None:
            return None
        url = self.options.collector.rstrip("/") + SERVING + urllib.parse.quote(self.engine, safe="")
        asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {self.options.token}"})
        with urllib.request.urlopen(asked, timeout=ASKED, context=self._context) as answer:
            said = json.loads(answer.read())
        self.texts_alone = said.get("texts_alone") is True  # an older collector does not say
        found: str | None = said["sha256"]
        return found

    def failed(self, error: Exception) -> None:
        """Count an answer that could not be read; the first of them is logged."""
        self.counts["failed"] += 1
        if self.counts["failed"] == 1:
            log.warning(
                "an answer could not be harvested (%s: %s); further ones are counted only", type(error).__name__, error
            )

    def skipped(self) -> None:
        """Count an answer of which not all was seen."""
        self.counts["skipped"] += 1

    def _run(self) -> None:
        while not (self._closing and self._queue.empty()):
            try:
                self._send_some()
            except Exception as error:  # the thread lives as long as the server
                self.failed(error)

    def _send_some(self) -> None:
        if batch := self._batch():
            data, self._done = pack(self.engine, batch, self._done), []
            if self._send(data):
                self.counts["sent"] += len(batch)
            else:
                self._keep(data, len(batch))
        self._send_spooled()

    def _batch(self) -> list[Json]:
        """Wait for answers and return those that came: at most BATCH, the last within WAIT of the first."""
        try:
            batch = [self._queue.get(timeout=WAIT)]
        except queue.Empty:
            return []
        until = time.monotonic() + WAIT
        while len(batch) < BATCH and (left := until - time.monotonic()) > 0:
            try:
                batch.append(self._queue.get(timeout=left))
            except queue.Empty:
                break
        return batch

    def _keep(self, data: bytes, count: int) -> None:
        kept = self._spool is not None and self._spool.keep(data, count)
        self.counts["spooled" if kept else "dropped"] += count

    def _send_spooled(self) -> None:
        while self._spool and not self._closing and time.monotonic() >= self._next and (oldest := self._spool.oldest()):
            path, count = oldest
            try:
                data = path.read_bytes()
            except FileNotFoundError:  # another API server of this vLLM has sent it
                continue
            if not self._send(data):
                return
            path.unlink(missing_ok=True)
            self.counts["sent"] += count

    def _send(self, data: bytes) -> bool:
        """Send a batch; return whether the collector has it. After a failure it is not tried again for a while."""
        if self.options.collector is None or time.monotonic() < self._next:
            return False
        request = urllib.request.Request(
            self.options.collector.rstrip("/") + ROUTE, data, method="POST",
            headers={"Authorization": f"Bearer {self.options.token}", "Content-Type": "application/json",
                     "Content-Encoding": "gzip"},
        )  # fmt: skip
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE, context=self._context) as answer:
                self._done.append(json.loads(answer.read())["batch"])
                return True
        except urllib.error.HTTPError as error:
            if error.code in REFUSED:  # it would be refused for ever, and hold up what comes after it
                self.counts["refused"] += 1
                log.warning("the collector refuses a batch of answers (%d); it is dropped", error.code)
                return True
            return self._later(error)
        except (OSError, ValueError, KeyError) as error:
            return self._later(error)

    def _later(self, error: Exception) -> bool:
        self._next = time.monotonic() + AGAIN
        self.counts["failures"] += 1
        if self.counts["failures"] == 1:
            log.warning("the collector does not take answers (%s); they are kept as far as there is room", error)
        return False


@cache
def sender() -> Sender:
    """Return the one sender of this process."""
    return Sender(options())


class Spool:
    """Batches on disk, oldest first, within a budget. Their files can be read by this user alone."""

    def __init__(self, folder: Path, budget: int) -> None:
        self.folder, self.budget = folder, budget
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for half in folder.glob("*.half"):
            half.unlink()

    def keep(self, data: bytes, count: int) -> bool:
        """Keep a batch of ``count`` answers; return False where there is no room for it."""
        used = sum(path.stat().st_size for path in self.folder.glob("*.json.gz"))
        if used + len(data) > self.budget:
            return False
        path = self.folder / f"{time.time_ns():020d}-{os.getpid()}-{count}.json.gz"
        half = path.with_suffix(".half")
        try:
            with open(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(data)
            half.rename(path)
        except OSError as error:
            log.warning("answers cannot be spooled: %s", error)
            return False
        return True

    def oldest(self) -> tuple[Path, int] | None:
        """Return the oldest batch and how many answers it holds."""
        path = min(self.folder.glob("*.json.gz"), default=None)
        return (path, int(path.name.split(".")[0].rsplit("-", 1)[1])) if path else None


def pack(engine: str, answers: list[Json], done: list[str]) -> bytes:
    """Encode a batch, under a new id. ``done``: ids of batches that will not be sent again."""
    batch = {"batch": uuid.uuid4().hex, "done": done, "engine": engine, "answers": answers}
    return gzip.compress(encode(batch).encode(), compresslevel=1)


def encode(value: Any) -> str:
    """Encode JSON in pieces: while a piece is encoded nothing else of this process runs, which serves clients."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{encode(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[" + ",".join(map(encode, value)) + "]"
    if isinstance(value, list) and len(value) > ROWS:
        parts = (value[start : start + ROWS] for start in range(0, len(value), ROWS))
        return "[" + ",".join(json.dumps(part, separators=(",", ":"))[1:-1] for part in parts) + "]"
    return json.dumps(value, separators=(",", ":"))
