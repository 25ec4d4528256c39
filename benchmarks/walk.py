"""The walk from an HTTP request to its tokens: which files a streamed completion truly passes through, and how many of
their lines it runs.

`osd serve` is started from a tree (`--root`, which may be an older checkout) with every line traced, in both of its
processes: the tracing is inherited where the one is forked by the other. What counts is from the request's
arrival to its last byte. Threads that do not decode (writers, followers, polls) are left out, and so is a file all of
whose lines also run while nothing is asked for. This file imports nothing of osd at its top, so that a server of any
tree can be run by it.
"""

from __future__ import annotations

import http.client
import json
import mmap
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from osd.bench.harness.report import BenchResult
    from osd.bench.harness.watch import Watch
    from storage.settings import Settings

ROOT = Path(__file__).parents[1]
ROOMS = ("osd", "router", "storage")
OFF, IDLE, ASKED = 0, 1, 2
"""What the byte says that all processes share: whether lines are logged, and of what."""
HTTP, ENGINE = "HTTP to engine", "engine to token"
STEP = "osd/engine/engine.py"
"""Whoever runs lines of it decodes."""
PROMPT = "How many days has a leap year?"
WARM_REQUESTS, IDLE_SECONDS = 3, 3.0


@dataclass(frozen=True, kw_only=True)
class WalkPlan:
    """The files that one streamed completion passes through, from HTTP to tokens, with their lines.

    Example: `python -m benchmarks walk --json`
    """

    root: Path = ROOT
    """The tree whose server is asked."""
    max_tokens: int = 48
    """Tokens of the answer."""


@dataclass(frozen=True)
class PassedLine:
    """A line that was run."""

    phase: int
    process: str
    thread: str
    file: str
    line: int


def bench_walk(plan: WalkPlan, settings: Settings, watch: Watch) -> BenchResult:
    """Ask a traced server, and tell what ran."""
    from osd.bench.harness.report import BenchResult

    with TemporaryDirectory(prefix="osd-walk-") as folder:
        log, switch = Path(folder, "lines"), Path(folder, "switch")
        log.touch()
        switch.write_bytes(bytes([OFF]))
        watch.at("asking a traced server")
        with traced_server(plan.root, Path(folder), log, switch) as url:
            for _ in range(WARM_REQUESTS):
                ask(url, plan.max_tokens)
            turn(switch, IDLE)
            time.sleep(IDLE_SECONDS)
            turn(switch, ASKED)
            ask(url, plan.max_tokens)
            turn(switch, OFF)
        rows = rows_of(passed(log), plan.root)
    totals = {group: total([row for row in rows if row["part"] == group]) for group in (HTTP, ENGINE)}
    tables = {part: [row for row in rows if row["part"] == part] for part in (HTTP, ENGINE)}
    tables["Totals"] = [{"part": part, **sums} for part, sums in totals.items()]
    figures = {"files": rows, "totals": totals, "total": total(rows)}
    return BenchResult("walk", {"root": str(plan.root), "max_tokens": plan.max_tokens}, figures, tables)


@contextmanager
def traced_server(root: Path, folder: Path, log: Path, switch: Path) -> Iterator[str]:
    """Yield the URL of an `osd serve` of this tree, run by :func:`serve_traced` in a process of its own."""
    variables = {
        "PYTHONPATH": str(root), "OSD_STORAGE__DIRECTORY": str(folder / "data"), "OSD_SERVER__PORT": "0",
        "OSD_SERVER__ADMIN_PORT": "0", "COLUMNS": "300", "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    from osd.bench.serve.process import READY, running, wait_for

    said, command = folder / "said", [sys.executable, "-P", __file__, str(root), str(log), str(switch)]
    with running(command, said, variables, cwd=folder) as process:  # no osd.toml of this tree is read
        yield wait_for("The server", process, said, lambda: READY.search(said.read_text()))[1]


def turn(switch: Path, phase: int) -> None:
    """Write the byte where it is: the server has its page in memory."""
    with switch.open("r+b") as file:
        file.write(bytes([phase]))


def ask(url: str, max_tokens: int) -> None:
    """Ask for one streamed completion and read it to its last byte."""
    body = {"prompt": PROMPT, "max_tokens": max_tokens, "temperature": 0, "stream": True}
    connection = http.client.HTTPConnection(urlsplit(url).netloc)
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse().read()
    connection.close()
    if b"[DONE]" not in answer:
        raise RuntimeError(f"no whole answer came: {answer[:200]!r}")


def passed(log: Path) -> list[PassedLine]:
    """Return what was logged of the request, by threads that serve it, in files that do more than when idle."""
    words = map(str.split, log.read_text().splitlines())
    lines = [PassedLine(int(phase), process, thread, file, int(line)) for phase, process, thread, file, line in words]
    decode = {(each.process, each.thread) for each in lines if each.file == STEP}
    serving = [each for each in lines if each.thread == "MainThread" or (each.process, each.thread) in decode]
    idle = {(each.file, each.line) for each in serving if each.phase == IDLE}
    asked = [each for each in serving if each.phase == ASKED]
    busy = {each.file for each in asked if (each.file, each.line) not in idle}
    return [each for each in asked if each.file in busy]


def rows_of(lines: list[PassedLine], root: Path) -> list[dict[str, Any]]:
    """Return a row a file, as the two parts of the walk have them."""
    ran: dict[str, set[int]] = {}
    for each in lines:
        ran.setdefault(each.file, set()).add(each.line)
    rows = [
        {"part": HTTP if file.startswith("osd/server/") else ENGINE, "file": file,
         "lines": (root / file).read_text().count("\n"), "run": len(numbers)}
        for file, numbers in ran.items()
    ]  # fmt: skip
    return sorted(rows, key=lambda row: (row["part"] != HTTP, row["file"]))


def total(rows: list[dict[str, Any]]) -> dict[str, int]:
    """Return the files, their lines, and those that ran."""
    return {"files": len(rows), "lines": sum(row["lines"] for row in rows), "run": sum(row["run"] for row in rows)}


def serve_traced(root: str, log: str, switch: str) -> None:
    """Run `osd serve`; each line of its rooms that runs while the switch is on is logged once, with its thread."""
    from osd.cli.main import main

    out = os.open(log, os.O_WRONLY | os.O_APPEND)
    with open(switch, "r+b") as file:
        phase = mmap.mmap(file.fileno(), 1)
    rooms = tuple(f"{root}/{room}/" for room in ROOMS)
    seen: set[tuple[int, str, str, int]] = set()

    def note(frame: FrameType, event: str, _: object) -> Any:
        if event == "line" and phase[0] != OFF:
            name = threading.current_thread().name.replace(" ", "_")
            key = phase[0], name, frame.f_code.co_filename[len(root) + 1 :], frame.f_lineno
            if key not in seen:
                seen.add(key)
                os.write(out, f"{key[0]} {os.getpid()} {name} {key[2]} {key[3]}\n".encode())
        return note

    def begin(frame: FrameType, event: str, _: object) -> Any:
        return note if frame.f_code.co_filename.startswith(rooms) else None

    threading.settrace(begin)
    sys.settrace(begin)
    sys.argv = ["osd", "serve"]
    main()


if __name__ == "__main__":
    serve_traced(*sys.argv[1:])
