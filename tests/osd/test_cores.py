"""What a process asks of its machine."""

from __future__ import annotations

import ctypes
import os
import sys
import threading

import pytest

from osd.cores import SLACK_NS, usable_cores, wake_promptly

PR_GET_TIMERSLACK = 30


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
