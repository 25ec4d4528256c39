"""What this process gets of the machine: cores, and how promptly a thread is woken."""

from __future__ import annotations

import ctypes
import os
import sys

PR_SET_TIMERSLACK = 29
SLACK_NS = 1000


def usable_cores() -> int:
    """At least 1: a container or a taskset may leave this process fewer than the machine has."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return os.cpu_count() or 1


def wake_promptly() -> bool:
    """Have this thread's waits end when they are due; False where that cannot be asked for.

    Linux may let each wait last 50 µs longer, so that processors wake more rarely. A thread that wants the interpreter
    from another one waits by the clock too, switch interval by switch interval, and one that decodes wants it back
    after every product.
    """
    if not sys.platform.startswith("linux"):
        return False
    return bool(ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, SLACK_NS, 0, 0, 0) == 0)
