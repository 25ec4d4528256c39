"""Real processes of the trainer, as a user starts them."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from storage.settings import Settings
from tests.support import launch

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 120.0
"""Seconds after which a test that waits has failed; nothing is asserted about how long things take."""


def write_config(path: Path, sections: Mapping[str, Mapping[str, Any]]) -> Path:
    """An osd.toml."""
    lines = [f"[{name}]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in s.items()) for name, s in sections.items()]
    path.write_text("\n".join(lines))
    return path


QUICK = {"epochs": 6, "learning_rate": 5e-3, "batch_tokens": 256}
"""[learn] that moves a tiny draft a lot in a short time."""


def configured(folder: Path, settings: Settings, learn: Mapping[str, float], **worker: object) -> Path:
    """An osd.toml over the data directory of ``settings``."""
    kept = {"directory": str(settings.storage.directory)}
    runs = {"poll_seconds": 0.2, "lease_seconds": 2.0, "device": "cpu", "nice": 0, **worker}
    return write_config(folder / "osd.toml", {"storage": kept, "learn": learn, "trainer": runs})


def environment() -> dict[str, str]:
    """The test's own, with the checkout importable and one thread for torch."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OSD_")}
    return kept | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def run_trainer(*arguments: object, file_limit: int | None = None) -> subprocess.CompletedProcess[str]:
    """`python -m trainer …` to its end; ``file_limit`` is the size in bytes at which its disk is full."""

    def limit() -> None:
        assert file_limit is not None
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))

    command = [sys.executable, "-m", "trainer", *map(str, arguments)]
    if file_limit is None:
        return launch.run(command, cwd=ROOT, env=environment(), timeout=PATIENCE)
    return subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=PATIENCE, preexec_fn=limit
    )


@contextmanager
def worker(config: Path, *arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    """`python -m trainer worker` in a process group of its own; whatever is left of it is killed at the end."""
    command = [sys.executable, "-m", "trainer", "worker", "--config", str(config), *map(str, arguments)]
    with (config.parent / "worker.log").open("ab") as log:
        process = launch.Process(
            command, cwd=ROOT, env=environment(), stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_for(what: Callable[[], object], process: subprocess.Popen[bytes] | None = None) -> Any:
    """Until it is true; the value. Fails when the process ends first or patience does."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if value := what():
            return value
        if process is not None and process.poll() is not None:
            raise AssertionError(f"the worker ended with status {process.returncode}")
        time.sleep(0.05)
    raise AssertionError("waited in vain")


def alive_in_group(group: int) -> list[int]:
    """Processes of a group that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            state, _, pgrp = (path / "stat").read_text().rpartition(")")[2].split()[:3]
            if int(pgrp) == group and state != "Z":
                found.append(int(path.name))
    return found
