"""What a front adds to the first token of an idle replica: ``python -m tests.support.upstream_delay``.

A fake replica streams at once. One client asks it, and the front before it, turn about over connections that are kept;
the last line is JSON.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import quantiles
from urllib.parse import urlsplit

import psutil

from tests.support.fake_replica import replica, stream

READY = re.compile(r"Serving (http://\S+)/v1")
WARM_UP, TURNS = 50, 1000
PROMPT = "How many apples are left when three of twelve were eaten? " * 20


class Line:
    """A kept connection that is asked again and again."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname, parts.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        body = json.dumps({"model": "target", "prompt": PROMPT, "max_tokens": 4, "stream": True}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
        self._request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    def ask(self) -> float:
        """Ask once, read all; return the milliseconds to the first byte of the first event."""
        begun, got, first = time.perf_counter(), b"", None
        self._socket.sendall(self._request)
        while not got.endswith(b"0\r\n\r\n"):
            got += self._socket.recv(65536)
            if first is None and b"data: " in got:
                first = time.perf_counter()
        assert first is not None and got.startswith(b"HTTP/1.1 200")
        return 1000 * (first - begun)


def percentiles(values: list[float]) -> tuple[float, float]:
    """Return p50 and p99."""
    cuts = quantiles(values, n=100)
    return cuts[49], cuts[98]


def cpu_seconds(process: subprocess.Popen[str]) -> float:
    """Return what a process has computed."""
    times = psutil.Process(process.pid).cpu_times()
    return float(times.user + times.system)


def serve_fake() -> None:
    """Be the replica, in a process of its own, until it is ended."""
    with replica() as fake:
        fake.answer = stream(4)
        print(fake.url, flush=True)
        time.sleep(3600)


def main() -> None:
    """Measure."""
    with tempfile.TemporaryDirectory() as folder:
        fake = subprocess.Popen([sys.executable, "-m", __spec__.name, "fake"], stdout=subprocess.PIPE, text=True)
        url = (fake.stdout.readline() if fake.stdout else "").strip()
        errors = Path(folder) / "stderr"
        begun = time.perf_counter()
        command = [sys.executable, "-m", "osd.cli.main", "serve", "--port", "0", "--admin-port", "0", "--upstream", url]
        with errors.open("w") as log:
            front = subprocess.Popen(
                command, stderr=log, env={**os.environ, "OSD_STORAGE__DIRECTORY": folder, "COLUMNS": "300"}
            )
        try:
            while not (found := READY.search(errors.read_text())):
                assert front.poll() is None, errors.read_text()
                time.sleep(0.01)
            started = time.perf_counter() - begun
            direct, through = Line(url), Line(found[1])
            for _ in range(WARM_UP):
                through.ask()
            before = cpu_seconds(front)
            pairs = [(direct.ask(), through.ask()) for _ in range(TURNS)]
            spent = cpu_seconds(front) - before
        finally:
            for process in (front, fake):
                process.terminate()
                process.wait()
    (p50, p99), (front50, front99) = percentiles([one for one, _ in pairs]), percentiles([two for _, two in pairs])
    added50, added99 = percentiles([two - one for one, two in pairs])
    print(json.dumps({
        "turns": TURNS, "start_seconds": round(started, 2), "direct_ms": [round(p50, 3), round(p99, 3)],
        "front_ms": [round(front50, 3), round(front99, 3)], "added_ms": [round(added50, 3), round(added99, 3)],
        "front_cpu_ms_per_request": round(1000 * spent / TURNS, 3),
    }))  # fmt: skip


if __name__ == "__main__":
    serve_fake() if "fake" in sys.argv else main()
