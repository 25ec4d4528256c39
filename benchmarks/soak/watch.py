"""What processes hold, looked at again and again: memory, open files, threads."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import psutil

SETTLING = 0.2
"""Share of the time in which caches fill and the first training is; growth is counted from then on."""
WINDOW = 0.1
"""Share of the time whose median is the state at its beginning or its end."""
MIB = 1 << 20


class ProcessSample(NamedTuple):
    """One role's processes at one moment, children and all."""

    at: float
    """Seconds since the beginning."""
    memory: float
    """MiB of resident memory."""
    files: int
    threads: int


Curves = Mapping[str, Sequence[ProcessSample]]


class Watcher:
    """Looks every so many seconds, in a thread of its own, at processes by their role. Stop it."""

    def __init__(self, processes: Mapping[str, int], every: float) -> None:
        self.curves: dict[str, list[ProcessSample]] = {role: [] for role in processes}
        self._processes, self._every = {role: psutil.Process(pid) for role, pid in processes.items()}, every
        self._begun, self._stopping = time.monotonic(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="osd-soak-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """The last look was the last."""
        self._stopping.set()
        self._thread.join()

    def _work(self) -> None:
        while True:
            for role, process in self._processes.items():
                if sample := look(process, time.monotonic() - self._begun):
                    self.curves[role].append(sample)
            if self._stopping.wait(self._every):
                return


def look(process: psutil.Process, at: float) -> ProcessSample | None:
    """What it and its children hold; None where it is gone. A child that ends meanwhile counts no more."""
    held = []
    with suppress(psutil.NoSuchProcess):
        for one in [*process.children(recursive=True), process]:
            with suppress(psutil.NoSuchProcess), one.oneshot():
                held.append((one.memory_info().rss / MIB, one.num_fds(), one.num_threads()))
    if not held or not process.is_running():
        return None
    memory, files, threads = (sum(column) for column in zip(*held, strict=True))
    return ProcessSample(at, float(memory), int(files), int(threads))


def ends(samples: Sequence[ProcessSample]) -> tuple[ProcessSample, ProcessSample] | None:
    """The state after settling and at the end, each of a window: its medians, and the fewest files, for clients'
    connections come and go and what leaks stays. None where too little was seen."""
    if len(samples) < 3:
        return None
    first, span = samples[0].at, samples[-1].at - samples[0].at
    begin = first + SETTLING * span
    early = [one for one in samples if begin <= one.at <= begin + WINDOW * span]
    late = [one for one in samples if one.at >= samples[-1].at - WINDOW * span]
    return (_state(early), _state(late)) if early and late else None


def _state(samples: Sequence[ProcessSample]) -> ProcessSample:
    at, memory, files, threads = zip(*samples, strict=True)
    return ProcessSample(statistics.median(at), statistics.median(memory), min(files), int(statistics.median(threads)))


def growth(curves: Curves) -> dict[str, dict[str, Any]]:
    """By role: memory, files and threads after settling and at the end, and by what share memory grew."""
    found = {}
    for role, samples in curves.items():
        if both := ends(samples):
            start, end = both
            found[role] = {
                "memory_mb": [round(start.memory, 1), round(end.memory, 1)], "growth": end.memory / start.memory - 1,
                "files": [start.files, end.files], "threads": [start.threads, end.threads],
            }  # fmt: skip
    return found
