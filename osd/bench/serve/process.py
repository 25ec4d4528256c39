"""A real `osd serve` for a bench: a process with a store and free ports of its own; new versions of its draft."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from safetensors.torch import load_file, save_file

from osd.bench.serve.client import Address
from osd.bench.serve.load import Beside
from osd.demo.runner.process import PATIENCE, environment, save_settings
from osd.models.pair import Pair
from storage.errors import StoreError
from storage.records import DEFAULT_DRAFT, DraftVersion
from storage.settings import Settings
from storage.store import Store
from storage.versions.weights import copy_files, servable_files

T = TypeVar("T")
READY = re.compile(r"Serving (http://\S+)/v1")
START_SECONDS = 900.0
EXACT = (("ignore_eos", True),)
"""Every answer has the length that was asked for, whatever the model would say."""


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """One that listens."""

    url: str
    settings: Settings
    config: Path
    process: subprocess.Popen[bytes]

    @property
    def address(self) -> Address:
        """For clients."""
        return Address(self.url, EXACT)

    def asked(self, osd: Mapping[str, Any]) -> Address:
        """For clients whose requests say this in ``osd``."""
        return Address(self.url, (*EXACT, ("osd", dict(osd))))


def settings_in(folder: Path, settings: Settings, pair: Pair, gamma: Mapping[str, Any]) -> Settings:
    """The settings of a server that works in this folder, with the pair by name and ``gamma`` on top."""
    return settings.changed(
        serve={"target": pair.target.name, "draft": pair.draft.name}, gamma=gamma,
        server={"host": "127.0.0.1", "port": 0, "admin_port": 0}, storage={"directory": folder / "data", "url": None},
    )  # fmt: skip


@contextmanager
def server(settings: Settings, folder: Path) -> Iterator[ServerProcess]:
    """An `osd serve` with these settings. Raises StoreError when it does not start."""
    folder.mkdir(parents=True, exist_ok=True)
    config, log = save_settings(settings, folder / "osd.toml"), folder / "log"
    command = [sys.executable, "-P", "-m", "osd.cli.main", "--config", str(config), "serve"]
    with running(command, log) as process:
        ready = wait_for("The server", process, log, lambda: READY.search(log.read_text(errors="replace")))
        yield ServerProcess(ready[1], settings, config, process)


@contextmanager
def running(
    command: list[str], log: Path, variables: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that says everything into ``log``, and is ended with the block. Ctrl-C reaches us alone."""
    with log.open("w") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True, cwd=cwd,
            env=environment() | {"COLUMNS": "300"} | dict(variables or {}),
        )  # fmt: skip
    try:
        yield process
    finally:
        signal_group(process, signal.SIGCONT)
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE)
        signal_group(process, signal.SIGKILL)
        process.wait()


def signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """A signal to it and its children."""
    with suppress(ProcessLookupError, PermissionError):  # nobody is left
        os.killpg(process.pid, number)


@contextmanager
def awake(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """It runs in the block only, and is stopped before and after: some servers take a core while they wait."""
    signal_group(process, signal.SIGCONT)
    try:
        yield
    finally:
        signal_group(process, signal.SIGSTOP)


def wait_for(name: str, process: subprocess.Popen[bytes], log: Path, ready: Callable[[], T | None]) -> T:
    """Return what ``ready`` does, once it returns something. Raises StoreError, with what the log says of it, where the
    process ends before."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        if found := ready():
            return found
        time.sleep(0.05)
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    wrong = [line for line in lines if "Error" in line]
    last = (wrong or lines or ["it said nothing"])[-1][:400]
    raise StoreError(reason=f"{name} did not start: {last}")


def swapping(store: Store, draft: Path, count: int, seconds: float, made: list[str]) -> Beside | None:
    """Return what makes so many new versions of a server's draft current, evenly over so many seconds; their ids come
    into ``made``. They lie on the disk before that."""
    root = store.versions.register_root(DEFAULT_DRAFT, draft)
    ready = [_stage(store, root, len(made) + number) for number in range(1, count + 1)]

    async def publish() -> None:
        for version in ready:
            await asyncio.sleep(seconds / (count + 1))
            await asyncio.to_thread(store.versions.promote, version.id)
            made.append(version.id)

    return publish if ready else None


def _stage(store: Store, root: DraftVersion, number: int) -> DraftVersion:
    """The same weights in other files: what is measured is the exchange, not what a worse draft costs."""
    source = store.versions.folder(root)

    def write(folder: Path) -> None:
        copy_files(source, servable_files(source), folder)
        weights = next(path for path in sorted(folder.iterdir()) if path.suffix == ".safetensors")
        save_file(load_file(weights), weights, {"format": "pt", "number": str(number)})

    return store.versions.stage(root.draft, root.id, root.kind, write)
