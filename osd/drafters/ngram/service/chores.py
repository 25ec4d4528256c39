"""A thread for what must not be done between two steps: compiling, reading, building, saving."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)


class BackgroundWorker:
    """Runs some work when it is woken, and periodically. What fails is logged and tried again."""

    def __init__(self, name: str, work: Callable[[], None], every: float) -> None:
        """Start the thread. ``every``: period in seconds."""
        self._work, self._every, self._closing = work, every, False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Run the work soon."""
        self._wake.set()

    def close(self) -> None:
        """End after the current work."""
        self._closing = True
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing:
            try:
                self._work()
            except Exception as error:  # decoding goes on without drafts; nothing here may end it
                said = (str(error).strip() or type(error).__name__).splitlines()[0]
                log.warning("%s: %s", self._thread.name, said, extra={"action": "proposing_failed"})
            self._wake.wait(self._every)
            self._wake.clear()
