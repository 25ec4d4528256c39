"""Saving of the draft choice's learned state in the data directory, so that a restarted server continues from it.

One JSON file, ``router/choices.json``, is written by a thread every few minutes and at the end, aside and
renamed. Servers that share a directory share the file; the last write wins. It contains sums, weights and document
frequencies of common tokens: no prompt, and nothing of requests that must not be learned from.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from pathlib import Path

from router.auto import AutoRouter
from storage.errors import StoreWriteFailed
from storage.files.files import TemporaryPath, make_folder, writing

log = logging.getLogger(__name__)

FILE = "choices.json"
SECONDS = 300.0
"""Seconds between checks for something new."""


class RouterStateKeeper:
    """Restores a router's state from a folder and saves it there. Closing it saves the last state."""

    def __init__(self, router: AutoRouter, folder: Path, every: float = SECONDS) -> None:
        self._router, self._path, self._every = router, folder / FILE, every
        self._restore()
        self._kept = router.learned
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="osd-choices", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Save what is new, and stop."""
        self._closing.set()
        self._thread.join()

    def _restore(self) -> None:
        try:
            self._router.restore(json.loads(self._path.read_bytes()))
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:  # learned anew, as without a file
            log.warning("the choice among drafts is learned anew, %s is of no use: %s", self._path, error,
                        extra={"action": "choices_refused"})  # fmt: skip

    def _work(self) -> None:
        while not self._closing.wait(self._every):
            self._keep()
        self._keep()

    def _keep(self) -> None:
        if (learned := self._router.learned) == self._kept:
            return
        # in pieces, so that decoding gets the interpreter in between
        data = "".join(json.JSONEncoder(allow_nan=False).iterencode(self._router.state())).encode()
        try:
            with writing(self._path):
                make_folder(self._path.parent, 0o700)
                with TemporaryPath(self._path.parent, f"{FILE}-{os.getpid()}-{id(self):x}") as aside:
                    aside.write(memoryview(data))
                    aside.rename(self._path)
        except StoreWriteFailed as error:
            log.warning("what was learned of drafts is not kept: %s", error, extra={"action": "choices_failed"})
            return
        self._kept = learned
