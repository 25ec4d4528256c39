"""A closed load against a server that answers one client at a time."""

from __future__ import annotations

import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import repeat
from typing import Any, cast

import pytest

from osd.bench.serve.client import Address
from osd.bench.serve.load import closed_load
from osd.bench.serve.requests import ServeJob
from tests.osd.bench.serve.test_connection import CHUNK, HEAD

SECONDS = 0.4


class _OneAtATime(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.turn = threading.Lock()


class _Answer(socketserver.BaseRequestHandler):
    """The head at once, an event after some time, and as long again the end."""

    def handle(self) -> None:
        server = cast("_OneAtATime", self.server)
        with suppress(OSError):  # who has left
            while self.request.recv(1 << 16):
                self.request.sendall(HEAD)
                with server.turn:
                    time.sleep(SECONDS)
                    self.request.sendall(CHUNK)
                    time.sleep(SECONDS)
                    self.request.sendall(b"0\r\n\r\n")


@pytest.fixture
def one_at_a_time() -> Iterator[_OneAtATime]:
    with _OneAtATime() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def _load(server: _OneAtATime, **how: Any) -> tuple[int, list[str]]:
    address = Address(f"http://127.0.0.1:{server.server_address[1]}")
    load = closed_load(address, repeat(ServeJob((1, 2), 2)), 3, 0.1, **how)
    return load.requests, load.errors


def test_whoever_is_in_line_when_the_time_is_over_is_answered(one_at_a_time: _OneAtATime) -> None:
    assert _load(one_at_a_time) == (3, [])


def test_or_leaves_and_is_no_failure_while_an_answer_that_has_begun_is_finished(one_at_a_time: _OneAtATime) -> None:
    assert _load(one_at_a_time, wait=False) == (1, [])
