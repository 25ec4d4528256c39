"""Ctrl-C that cannot be lost.

Python raises KeyboardInterrupt wherever the main thread happens to be. In a callback of compiled code, a finalizer or a
weak reference's callback it can only be printed, and the work goes on as if nobody had asked.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def ctrl_c() -> Iterator[Callable[[], None]]:
    """Catch Ctrl-C so that it cannot be lost: yields a check to call in a loop, which raises KeyboardInterrupt again.

    The first KeyboardInterrupt is raised as ever. Outside the main thread signals are not seen, and the check does
    nothing.
    """
    asked = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        asked.set()
        signal.default_int_handler(number, frame)

    def heed() -> None:
        if asked.is_set():
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield heed
        return
    before = signal.signal(signal.SIGINT, ask)
    try:
        yield heed
    finally:
        signal.signal(signal.SIGINT, before)
