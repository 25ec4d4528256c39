"""The host: how many cores this process has, how promptly its threads are woken, memory it gives back."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

PR_SET_TIMERSLACK = 29
SLACK_NS = 1000
TIDY_SECONDS = 60.0


def usable_cores() -> int:
    """Return the cores this process may use, at least 1: a container or a taskset may leave it fewer than the machine
    has."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return os.cpu_count() or 1


def wake_promptly() -> bool:
    """Have this thread's waits end when they are due; return False where that cannot be asked for.

    Linux may let each wait last 50 µs longer, so that processors wake more rarely. A thread that wants the interpreter
    from another one waits by the clock too, switch interval by switch interval, and one that decodes wants it back
    after every product.
    """
    if not sys.platform.startswith("linux"):
        return False
    return bool(ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, SLACK_NS, 0, 0, 0) == 0)


def give_back() -> None:
    """Return freed memory to the system: glibc would keep it, and other processes may want it."""
    with suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def without_collecting() -> Iterator[None]:
    """Collect no garbage within: while modules are imported and models loaded there is none, and to look for it takes a
    sixth of the time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def leave_alone() -> None:
    """Exempt all live objects from garbage collection. A whole collection over what torch and transformers bring
    stops every thread for a quarter of a second or more."""
    gc.collect()
    gc.freeze()


def let_go() -> None:
    """Collect all garbage, also among what was exempt, and return its memory: a target that was exchanged is large."""
    gc.unfreeze()
    leave_alone()
    give_back()


async def keep_giving_back() -> None:
    """Return freed memory once a minute, beside the event loop. Prompts of ever other lengths leave holes all over the
    heap, each of which was touched once: without this a server holds half as much again as it uses, and more by the
    hour."""
    import asyncio  # not at once: every command imports this module

    while True:
        await asyncio.sleep(TIDY_SECONDS)
        await asyncio.to_thread(give_back)
