"""How busy an engine is, in a file that trainers on the same machine read: ``load/<process>.json``, data directory.

It holds {"at", "busy", "rows", "waiting"}: Unix seconds, the share of the newest looks at which there was work, rows
that decode now, requests that wait for a row. It is written anew when that changes, once a second at least, and taken
away at the end; one that was not written for ``STALE_SECONDS`` is that of a process that was killed. Who reads it
decides.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.02
"""Between two looks at the engine; each costs a few microseconds."""
NEWEST = 0.1
"""Weight of the newest look in ``busy``: what it says is the last fifth of a second."""
STALE_SECONDS = 5.0


class EngineLoad(NamedTuple):
    """One engine's."""

    busy: float
    rows: int
    waiting: int


class Beacon:
    """Tells of ``look``, which answers (whether there is work, rows, waiting). Close it to stop."""

    def __init__(self, folder: Path, look: Callable[[], tuple[bool, int, int]]) -> None:
        self.path = folder / f"{os.getpid()}-{id(self):x}.json"
        self._look, self._closing = look, threading.Event()
        self._busy, self._told, self._told_at = 0.0, EngineLoad(0.0, -1, 0), 0.0
        self._thread = threading.Thread(target=self._work, name="osd-beacon", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop, and take the file away."""
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
        load, now = EngineLoad(round(self._busy, 1), rows, waiting), time.monotonic()
        if load != self._told or now - self._told_at >= 1:
            self._told, self._told_at = load, now
            aside = self.path.with_suffix(".aside")
            aside.write_text(json.dumps({"at": time.time(), **load._asdict()}))
            aside.replace(self.path)


def loads(folder: Path) -> list[EngineLoad]:
    """Of every engine that lives."""
    found = []
    for path in folder.glob("*.json"):
        with suppress(OSError, ValueError, KeyError):
            said = json.loads(path.read_text())
            if abs(time.time() - said["at"]) < STALE_SECONDS:
                found.append(EngineLoad(said["busy"], said["rows"], said["waiting"]))
    return found


def load_folder(directory: Path) -> Path:
    """Where they lie in a data directory."""
    return directory / "load"
