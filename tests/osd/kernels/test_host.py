"""What a process asks of its machine."""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import subprocess
import sys
import threading
from contextlib import suppress

import pytest

from osd.kernels.host import SLACK_NS, leave_alone, usable_cores, wake_promptly, without_collecting

PR_GET_TIMERSLACK = 30
SCENE = """
import asyncio, contextlib, sys
import psutil
from osd.kernels import host

process = psutil.Process()
host.give_back()
before = process.memory_info().rss
parts = [bytearray(40_000) for _ in range(10_000)]
held, kept = process.memory_info().rss, parts[::1000]
del parts
left = process.memory_info().rss
if "often" in sys.argv:
    host.TIDY_SECONDS = 0.1
    with contextlib.suppress(TimeoutError):
        asyncio.run(asyncio.wait_for(host.keep_giving_back(), 0.5))
else:
    host.give_back()
print(held - before, left - before, process.memory_info().rss - before)
"""


def test_no_more_cores_than_this_process_may_use() -> None:
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux's own")
def test_one_thread_wakes_promptly_and_the_others_stay_as_they_are() -> None:
    def slack() -> int:
        return int(ctypes.CDLL(None).prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0))

    found: list[int] = []
    before = slack()
    thread = threading.Thread(target=lambda: found.extend([wake_promptly(), slack()]))
    thread.start()
    thread.join()
    assert found == [True, SLACK_NS] and slack() == before


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is asked")
@pytest.mark.parametrize("how", ["once", "often"])
def test_what_was_freed_is_given_back(how: str) -> None:
    """Ten of ten thousand pieces are kept, all over the heap."""
    said = subprocess.run([sys.executable, "-c", SCENE, how], capture_output=True, text=True, check=True).stdout
    held, left, given = map(int, said.split())
    assert left > held / 2, "nothing was to be given back: the test shows nothing"
    assert given < held / 10


def test_what_lives_is_not_looked_at_by_the_collector_again() -> None:
    mine = [[number] for number in range(1000)]
    leave_alone()
    try:
        looked_at = {id(one) for one in gc.get_objects()}
        assert gc.get_freeze_count() > len(mine) and not looked_at & {id(one) for one in mine}
    finally:
        gc.unfreeze()


def test_no_garbage_is_collected_while_something_is_imported_and_as_before_afterwards() -> None:
    with suppress(ZeroDivisionError), without_collecting():
        with without_collecting():
            assert not gc.isenabled()
        assert not gc.isenabled()
        raise ZeroDivisionError
    assert gc.isenabled()
