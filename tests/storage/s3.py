"""A real S3 server in a process of its own, and empty folders on it."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

BUCKET = "osd-test"
PATIENCE = 60.0
KEYS = {"AWS_ACCESS_KEY_ID": "osd-test", "AWS_SECRET_ACCESS_KEY": "not-a-secret", "AWS_DEFAULT_REGION": "us-east-1"}


@contextmanager
def s3_server(folder: Path, **options: str) -> Iterator[str]:
    """The endpoint of a moto server with one bucket; skips where it is not installed. ``options`` are moto's."""
    for name in ("moto", "flask", "s3fs"):
        if find_spec(name) is None:
            pytest.skip(f"{name} is not installed: pip install 'moto[server]' s3fs")
    with (folder / "moto.log").open("wb") as log:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=os.environ | options)
    try:
        endpoint = _endpoint(folder / "moto.log", process)
        with urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT"), timeout=30):
            yield endpoint
    finally:
        process.kill()
        process.wait()


@cache
def shared_server() -> str:
    """The endpoint of one server for the whole run. fsspec keeps clients, and making one takes most of a second; those
    of a server that was there before know another endpoint."""
    stack = ExitStack()
    atexit.register(stack.close)
    endpoint = stack.enter_context(s3_server(Path(stack.enter_context(TemporaryDirectory(prefix="osd-s3-")))))
    pytest.importorskip("s3fs").S3FileSystem.clear_instance_cache()
    return endpoint


def _endpoint(log: Path, process: subprocess.Popen[bytes]) -> str:
    """Where it listens: it says so."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        for word in log.read_text().split():
            if word.startswith("http://127.0.0.1:"):
                return word
        time.sleep(0.05)
    raise AssertionError(f"the S3 server did not start: {log.read_text()[-2000:]}")


def environment(endpoint: str) -> dict[str, str]:
    """What a process needs to reach it."""
    return {**KEYS, "AWS_ENDPOINT_URL": endpoint, "AWS_EC2_METADATA_DISABLED": "true", "NO_PROXY": "127.0.0.1"}
