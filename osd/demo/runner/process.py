"""Processes of the trainer that a run starts and stops: the worker beside it, and offline distillation."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from storage.errors import TrainingFailed
from storage.files.files import writing
from storage.settings import Settings

PATIENCE = 20.0
"""Seconds that a worker has to end politely before it is killed."""
TAIL = 12
"""Lines of a process's log that are shown when it ends in a way that nobody asked for."""


def save_settings(settings: Settings, path: Path) -> Path:
    """Write all settings as a file that ``load_settings`` reads back. Raises StoreWriteFailed."""
    sections = settings.model_dump(mode="json").items()
    lines = [line for name, section in sections for line in (f"[{name}]", *_lines(section), "")]
    with writing(path):
        path.write_text("\n".join(lines), encoding="utf-8")
    return path


def _lines(section: dict[str, Any]) -> list[str]:
    """Keys and values; TOML has no null, so what is None is left out."""
    return [f"{json.dumps(key)} = {_toml(value)}" for key, value in section.items() if value is not None]


def _toml(value: Any) -> str:
    """A value as TOML writes it: as JSON does, but for tables."""
    return f"{{{', '.join(_lines(value))}}}" if isinstance(value, dict) else json.dumps(value)


class WorkerProcess:
    """``python -m trainer worker`` in a process of its own, with everything that it says in a file."""

    def __init__(self, config: Path, log: Path) -> None:
        self.log = log
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                command("worker", "--config", config), stdout=out, stderr=out, stdin=subprocess.DEVNULL,
                env=environment(), start_new_session=True,  # Ctrl-C reaches us first, and we end it in order
            )  # fmt: skip

    @property
    def pid(self) -> int:
        """Its process id, which is that of its process group too."""
        return self._process.pid

    def require_alive(self) -> None:
        """Raises TrainingFailed with the end of its log if it is gone."""
        if (status := self._process.poll()) is not None:
            raise TrainingFailed(run="(none)", draft="default", reason=_why("the worker", status, self.log))

    def stop(self) -> None:
        """Ask it to end, wait, and kill what is left of it and of its children."""
        self._signal(signal.SIGTERM)
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self._signal_group(signal.SIGKILL)
            self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            self._process.send_signal(number)

    def _signal_group(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):  # nobody is left in it
            os.killpg(self.pid, number)


@contextmanager
def worker_beside(config: Path, log: Path) -> Iterator[WorkerProcess]:
    """A worker for as long as the block runs, however it ends."""
    worker = WorkerProcess(config, log)
    try:
        yield worker
    finally:
        worker.stop()


def distil_offline(config: Path, log: Path, *, draft: Path, route: str, out: Path, epochs: int) -> Path:
    """The draft after ``epochs`` passes over everything that was recorded on a route, as a folder.

    Raises TrainingFailed with the end of the log.
    """
    asked = ("--draft", draft, "--route", route, "--out", out, "--epochs", epochs, "--json")
    with log.open("ab") as sink:
        process = subprocess.Popen(
            command("distil", "--config", config, *asked), stdout=sink, stderr=sink, stdin=subprocess.DEVNULL,
            env=environment(),
        )  # fmt: skip
        try:
            status = process.wait()
        except BaseException:
            process.kill()
            process.wait()
            raise
    if status:
        raise TrainingFailed(run="(offline)", draft=str(draft), reason=_why("offline distillation", status, log))
    return out


def command(action: str, *rest: object) -> list[str]:
    """The command line of a process of the trainer; ``-P`` keeps the working directory's folders out of its imports."""
    return [sys.executable, "-P", "-m", "trainer", action, *map(str, rest)]


def environment() -> dict[str, str]:
    """Ours without OSD_… variables: they are in the settings file by now, and one that names another store must
    not reach a process that works for this one."""
    return {name: value for name, value in os.environ.items() if not name.startswith("OSD_")}


def _why(who: str, status: int, log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL:]
    return f"{who} ended with status {status}; the end of {log}:\n" + "\n".join(lines)
