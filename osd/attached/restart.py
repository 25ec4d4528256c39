"""The restart hook: a command of the operator's that starts an engine again with another draft."""

from __future__ import annotations

import os
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

from osd.attached.base import EngineUnsuited


@dataclass(frozen=True, slots=True)
class RestartHook:
    """Runs a command with the draft's folder behind its own arguments, and OSD_ENGINE, OSD_URL and OSD_VERSION in its
    environment. It may return before the engine is up."""

    command: str
    seconds: float
    """It must have ended after so long, and after as long again the engine must be up."""

    def __call__(self, engine: str, url: str, folder: Path, version: str) -> None:
        """Run it. Raises EngineUnsuited with what it said last, where it fails."""
        told = {**os.environ, "OSD_ENGINE": engine, "OSD_URL": url, "OSD_VERSION": version}
        try:
            done = subprocess.run(
                [*shlex.split(self.command), str(folder)], env=told, timeout=self.seconds, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise self._failed(engine, f"had not ended after {self.seconds:.0f} s (attach.restart_seconds)") from None
        except (OSError, ValueError) as error:
            raise self._failed(engine, f"cannot be run: {error}") from None
        if done.returncode:
            said = (done.stdout.strip().splitlines() or ["nothing"])[-1][:300]
            raise self._failed(engine, f"ended with {done.returncode} and said: {said}")

    def _failed(self, engine: str, how: str) -> EngineUnsuited:
        return EngineUnsuited(engine=engine, reason=f"`{shlex.split(self.command)[0]}` (attach.restart) {how}")
