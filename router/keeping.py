"""What the choice among drafts has learned, kept in the data directory: a server that starts again goes on from there.

One JSON file, ``router/choices.json``, written by a thread of its own every few minutes and at the end, aside and
renamed. Servers that share a directory share the file; the newest word counts. It holds sums, weights and how many
prompts hold a common token: no prompt, and nothing of requests that must not be learned from.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from pathlib import Path

from router.auto import AutoRouter
from storage.errors import StoreWriteFailed
from storage.files.files import Aside, make_folder, writing

log = logging.getLogger(__name__)

FILE = "choices.json"
SECONDS = 300.0
"""Between two looks at whether there is something new."""


class RouterStateKeeper:
    """Restores a router's state from a folder, and keeps it there. Close it to keep the last of it."""

    def __init__(self, router: AutoRouter, folder: Path, every: float = SECONDS) -> None:
        self._router, self._path, self._every = router, folder / FILE, every
        self._restore()
        self._kept = router.learned
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="osd-choices", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Keep what is new, and stop."""
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
        # in pieces, between which decoding may have the interpreter
        data = "".join(json.JSONEncoder(allow_nan=False).iterencode(self._router.state())).encode()
        try:
            with writing(self._path):
                make_folder(self._path.parent, 0o700)
                with Aside(self._path.parent, f"{FILE}-{os.getpid()}-{id(self):x}") as aside:
                    aside.write(memoryview(data))
                    aside.rename(self._path)
        except StoreWriteFailed as error:
            log.warning("what was learned of drafts is not kept: %s", error, extra={"action": "choices_failed"})
            return
        self._kept = learned
