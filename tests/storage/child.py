"""What a test does in a process of its own, often to be killed there.

``kill_at`` names a point at which the process kills itself with SIGKILL, as the kernel would: nothing is flushed,
no ``finally`` runs. The points are reached by wrapping functions here; the code under test has no hooks.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pyarrow.parquet  # noqa: F401, children need not load it one by one
from sqlalchemy import Connection, event
from sqlalchemy.orm import Session

from storage.files import files
from storage.files.places import LocalFolder
from storage.settings import Settings, load_settings
from storage.store import Store, open_store
from storage.versions import weights
from tests.storage.make import claim, outcome, samples, stage

BATCH = 4
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload([__name__, "pytest"])


def start_child(settings: Settings, command: str, *arguments: str) -> BaseProcess:
    """Run a command in a new process; what it acknowledges is written to a file beside the data directory."""
    directory = settings.storage.data_directory()
    child = PROCESSES.Process(target=main, args=(str(directory), settings.storage.url or "-", command, *arguments))
    child.start()
    return child


def join(child: BaseProcess) -> int | None:
    """Its exit status."""
    child.join(timeout=60)
    return child.exitcode


def run_child(settings: Settings, command: str, *arguments: str) -> tuple[int | None, list[str]]:
    """(exit status, what it acknowledged); minus the signal's number for one that was killed."""
    status = join(start_child(settings, command, *arguments))
    spoken = _spoken(settings.storage.data_directory())
    return status, spoken.read_text().splitlines() if spoken.exists() else []


def _spoken(directory: Path) -> Path:
    return directory.with_name("acknowledged")


def acknowledge(store: Store, word: object) -> None:
    """Tell the parent, at once."""
    with _spoken(store.directory).open("a") as file:
        file.write(f"{word}\n")


def die(*_: Any) -> None:
    """As if the power went."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_if_writing(connection: Connection) -> None:
    """On COMMIT of a transaction that may have changed something."""
    if not connection.get_execution_options().get("osd_read_only"):
        die()


def die_if_written(session: Session) -> None:
    """After such a COMMIT."""
    if not session.get_bind().get_execution_options().get("osd_read_only"):
        die()


def before(module: Any, name: str) -> None:
    """Die instead of calling the function."""
    setattr(module, name, die)


def after(module: Any, name: str) -> None:
    """Die once the function has returned."""
    function: Callable[..., Any] = getattr(module, name)

    def call_and_die(*arguments: Any, **keywords: Any) -> None:
        function(*arguments, **keywords)
        die()

    setattr(module, name, call_and_die)


def half_written(aside: files.TemporaryPath, data: memoryview) -> None:
    """In the middle of a file."""
    os.write(aside._handle, data[: len(data) // 2])
    die()


def kill_at(store: Store, point: str) -> None:
    """Arrange for this process to die at a point of what it does next."""
    points: dict[str, Callable[[], None]] = {
        "nowhere": lambda: None,
        "half written": lambda: setattr(files.TemporaryPath, "write", half_written),
        "written, not synced": lambda: before(files, "sync"),
        "synced, not renamed": lambda: before(files, "rename"),
        "renamed, folder not synced": lambda: after(os, "rename"),
        "renamed, not indexed": lambda: after(files.TemporaryPath, "rename"),
        "half sealed": lambda: before(weights, "sync_tree"),
        "sealed, not entered": lambda: before(weights, "write_provenance"),
        "marked, not committed": lambda: after(weights, "mark_ready"),
        "before commit": lambda: event.listen(store.db.engine, "commit", die_if_writing),
        "after commit": lambda: event.listen(Session, "after_commit", die_if_written),
        "committed, old file there": lambda: before(LocalFolder, "remove"),
    }
    points[point]()


def batch(number: int) -> list[Any]:
    """Requests of a batch, the same ones each time it is asked for."""
    return [samples(BATCH * number + each, created_at=1e9 + BATCH * number + each) for each in range(BATCH)]


def add(store: Store, point: str) -> None:
    """Add two batches and say so, then die while adding the third."""
    for number in range(2):
        store.samples.add(batch(number))
        acknowledge(store, number)
    kill_at(store, point)
    store.samples.add(batch(2))
    acknowledge(store, 2)


def purge(store: Store, point: str) -> None:
    """Die while purging a request."""
    kill_at(store, point)
    store.samples.purge(request_id="r1")


def train(store: Store, point: str) -> None:
    """Claim, and die while staging or publishing what was trained: ``stage: <point>`` or ``publish: <point>``."""
    run = claim(store, holder="child")
    step, name = point.split(": ")
    if step == "stage":
        kill_at(store, name)
    version = stage(store, run.parent, 1.0, run)
    kill_at(store, name)
    store.versions.publish(version.id, {}, run=run)


def write(store: Store, batches: str, worker: str) -> None:
    """Add batches of seven outcomes over five minutes."""
    for number in range(int(batches)):
        store.outcomes.add([outcome(finished_at=1e6 + 60.0 * ((number + each) % 5)) for each in range(7)], worker)


COMMANDS: dict[str, Callable[..., None]] = {"add": add, "purge": purge, "train": train, "write": write}


def main(directory: str, url: str, command: str, *arguments: str) -> None:
    settings = load_settings(storage={"directory": Path(directory), "url": None if url == "-" else url, "holdout": 0.0})
    with open_store(settings) as store:
        COMMANDS[command](store, *arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
