"""Compiles once in a process, in the background; until it is ready, or where that fails, the plain code must do."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

Made = TypeVar("Made")


class BackgroundCompile(Generic[Made]):
    """Something compiled in the background."""

    def __init__(self, make: Callable[[], Made], name: str, otherwise: str) -> None:
        """Prepare without compiling. ``make`` imports the compiler, compiles, and calls what it made once with each
        kind of argument. ``otherwise``: the log message where that fails on a machine."""
        self.ready: Made | None = None
        """What was compiled; None until it is, and where it cannot be."""
        self._make, self._name, self._otherwise = make, name, otherwise
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Compile in the background, unless that was begun already."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._load, name=self._name, daemon=True)
                self._thread.start()

    def wait(self) -> Made | None:
        """Wait until it is ready and return it; None where it cannot be compiled."""
        self.start()
        if self._thread is not None:
            self._thread.join()
        return self.ready

    def _load(self) -> None:
        try:
            self.ready = self._make()
        except Exception as error:  # whatever is wrong with the compiler on this machine, the plain way works
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            log.warning("%s (%s)", self._otherwise, reason, extra={"action": "compile_failed"})
