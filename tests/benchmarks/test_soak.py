"""What a soak makes of its samples, and what it sees of a process."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil
import pytest

from benchmarks.soak import ProcessSample, Watcher, ends, growth, look


def samples(memory: list[float]) -> list[ProcessSample]:
    """One a second."""
    return [ProcessSample(float(i), value, 5, 3) for i, value in enumerate(memory)]


def test_growth_is_counted_after_settling() -> None:
    settled = [100.0 * i for i in range(20)] + [2000.0] * 60 + [2040.0] * 21
    found = growth({"server": samples(settled)})["server"]
    assert found["growth"] == pytest.approx(0.02) and found["memory_mb"] == [2000.0, 2040.0]
    assert found["files"] == [5, 5] and found["threads"] == [3, 3]


def test_files_that_come_and_go_are_no_leak_and_files_that_stay_are() -> None:
    clients = [0, 7, 3, 9, 4, 8, 5, 9, 6, 2] * 10
    steady = [ProcessSample(float(i), 100.0, 29 + more, 3) for i, more in enumerate(clients)]
    leaking = [one._replace(files=one.files + i // 20) for i, one in enumerate(steady)]
    assert growth({"server": steady})["server"]["files"] == [29, 29]
    assert growth({"server": leaking})["server"]["files"] == [30, 33]


def test_too_few_looks_say_nothing() -> None:
    assert ends(samples([1.0, 2.0])) is None and growth({"server": []}) == {}


def test_a_process_and_its_children_are_seen_until_they_are_gone() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    seen = psutil.Process(process.pid)
    while not seen.children():
        time.sleep(0.01)
    sample = look(seen, 1.0)
    assert sample and sample.threads >= 2 and sample.files >= 6 and sample.memory > 5
    process.communicate(b"\n")
    assert look(seen, 2.0) is None


def test_a_watcher_looks_until_it_is_stopped() -> None:
    watcher = Watcher({"me": os.getpid()}, 0.01)
    while len(watcher.curves["me"]) < 5:
        time.sleep(0.01)
    watcher.stop()
    count = len(watcher.curves["me"])
    assert sorted(watcher.curves["me"]) == watcher.curves["me"]
    time.sleep(0.05)
    assert len(watcher.curves["me"]) == count
