"""A trainer beside the engine on one device: how fast it learns, and what serving loses by it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from osd.models.model import Model

START_SECONDS = 20.0
"""How long a trainer may take to begin at least: it imports torch first."""


class TrainerPace:
    """Positions that a training process has learned from so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process, self.positions = process, 0
        self.began = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.positions = json.loads(line)["positions"]
            self.began.set()
        self.began.set()

    def rate(self, seconds: float) -> float:
        """Return the positions a second over the next ``seconds``."""
        before, begun = self.positions, time.perf_counter()
        time.sleep(seconds)
        return (self.positions - before) / (time.perf_counter() - begun)


@contextmanager
def trainer_beside(draft: Model, folder: Path, seconds: float) -> Iterator[TrainerPace]:
    """Train a random draft of this shape in another process within the block.

    Raises RuntimeError where it did not begin in so many seconds.
    """
    config = folder / "config.json"
    draft.module.config.to_json_file(config)
    command = [sys.executable, "-P", "-m", "benchmarks.gpu.pace", str(config), str(draft.device)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        pace = TrainerPace(process)
        pace.began.wait(max(START_SECONDS, seconds))
        if not pace.positions:
            raise RuntimeError("the trainer did not begin in time")
        yield pace
    finally:
        process.terminate()
        process.wait()
