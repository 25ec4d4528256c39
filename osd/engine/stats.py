"""What an engine says of itself: counters and timings; and how busy it is, in a file that trainers on the same machine
read: ``load/<process>.json`` in the data directory.

The file holds {"at", "busy", "rows", "waiting", "devices"}: Unix seconds, the share of the newest polls at which there
was work, rows that decode now, requests that wait for a row, where it computes (:mod:`osd.models.device_timer`). It is
rewritten whenever that changes, at least once a second, and removed at the end; one that was not written for
``STALE_SECONDS`` belongs to a process that was killed. What follows from the load is up to the reader.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple


@dataclass(slots=True)
class EngineStats:
    """Counters and timings of one engine."""

    steps: int = 0
    round_ms: deque[float] = field(default_factory=lambda: deque(maxlen=100_000))
    """Milliseconds of each round, newest last."""
    swap_pause_ms: list[float] = field(default_factory=list)
    """Milliseconds for which decoding stood still at each swap."""
    stood_in: int = 0
    """Requests that the default draft served because the one they were sent to was not in memory."""
    draft_failures: Counter[str] = field(default_factory=Counter)
    """How often each drafter has raised: each time a round went on without its draft."""
    read_tokens: int = 0
    """Prompt tokens that the target computed."""
    waited_for_memory: int = 0
    """Steps in which a request waited for blocks of the target's cache (``serve.cache_mb``)."""
    set_aside: int = 0
    """Times that a sequence waited for blocks in the middle of its text."""
    prefix_queried: int = 0
    """Prompt tokens that were looked up in the prefix cache."""
    prefix_hits: int = 0
    """Prompt tokens whose keys and values were copied from it."""


log = logging.getLogger(__name__)

LOOK_SECONDS = 0.02
"""Interval between two polls of the engine; each costs a few microseconds."""
NEWEST = 0.1
"""Weight of the newest poll in the moving average ``busy``, which thus covers about the last fifth of a second."""
STALE_SECONDS = 5.0


class EngineLoad(NamedTuple):
    """The load of one engine."""

    busy: float
    rows: int
    waiting: int
    devices: tuple[str, ...] = ()
    """Where it computes; none are known of an engine that does not say."""

    def is_on(self, device: str) -> bool:
        """Return whether the engine may compute on the device."""
        return not self.devices or device in self.devices


class Beacon:
    """Publishes the load of an engine on ``devices``, polled through ``look`` (whether there is work, rows, waiting).
    Close it to stop."""

    def __init__(self, folder: Path, look: Callable[[], tuple[bool, int, int]], devices: Sequence[str] = ()) -> None:
        self.path = folder / f"{os.getpid()}-{id(self):x}.json"
        self._look, self._devices, self._closing = look, tuple(devices), threading.Event()
        self._busy, self._told, self._told_at = 0.0, EngineLoad(0.0, -1, 0), 0.0
        self._thread = threading.Thread(target=self._work, name="osd-beacon", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop publishing and remove the file."""
        self._closing.set()
        self._thread.join()
        with suppress(OSError):
            self.path.unlink(missing_ok=True)

    def _work(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            while not self._closing.wait(LOOK_SECONDS):
                self._tell(*self._look())
        except OSError as error:  # trainers then take the engine for idle; serving goes on
            log.warning("trainers are not told of the load: %s", error, extra={"action": "beacon_failed"})

    def _tell(self, busy: bool, rows: int, waiting: int) -> None:
        self._busy += NEWEST * (busy - self._busy)
        load, now = EngineLoad(round(self._busy, 1), rows, waiting, self._devices), time.monotonic()
        if load != self._told or now - self._told_at >= 1:
            self._told, self._told_at = load, now
            aside = self.path.with_suffix(".aside")
            aside.write_text(json.dumps({"at": time.time(), **load._asdict()}))
            aside.replace(self.path)


def loads(folder: Path) -> list[EngineLoad]:
    """Return the load of every live engine that publishes to the folder."""
    found = []
    for path in folder.glob("*.json"):
        with suppress(OSError, ValueError, KeyError):
            said = json.loads(path.read_text())
            if abs(time.time() - said["at"]) < STALE_SECONDS:
                places = tuple(said.get("devices", ()))
                found.append(EngineLoad(said["busy"], said["rows"], said["waiting"], places))
    return found


def load_folder(directory: Path) -> Path:
    """Return the folder of the load files in a data directory."""
    return directory / "load"
