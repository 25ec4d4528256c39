"""The broker without a server: one thread puts while another gets, as the worker's timer and its consumer do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Empty

import pytest
from kombu import Connection

from trainer.worker.broker import Channel, Transport

QUEUE, COUNT = "turns", 400


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    for name in ("messages", "control"):
        (tmp_path / name).mkdir()
    options = {
        "data_folder_in": str(tmp_path / "messages"),
        "data_folder_out": str(tmp_path / "messages"),
        "control_folder": str(tmp_path / "control"),
    }
    with Connection("filesystem://localhost", transport=Transport, transport_options=options) as connection:
        yield connection


def test_every_message_is_read_whole(connection: Connection) -> None:
    putting, getting = connection.channel(), connection.channel()
    assert isinstance(getting, Channel)
    thread = threading.Thread(target=lambda: [putting._put(QUEUE, {"n": n, "pad": "x" * 9999}) for n in range(COUNT)])
    thread.start()
    found: list[int] = []
    while thread.is_alive() or len(found) < COUNT:
        try:
            found.append(getting._get(QUEUE)["n"])
        except Empty:
            if not thread.is_alive() and not putting._size(QUEUE):
                break
    thread.join()
    assert sorted(found) == list(range(COUNT))


def test_a_message_that_is_no_message_is_passed_over(connection: Connection, tmp_path: Path) -> None:
    channel = connection.channel()
    (tmp_path / "messages" / f"0_half.{QUEUE}.msg").write_text("")
    channel._put(QUEUE, {"n": 1})
    with pytest.raises(Empty):
        channel._get(QUEUE)
    assert channel._get(QUEUE) == {"n": 1}
