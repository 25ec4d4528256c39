"""The parts of several processes behind a port, in one process."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from osd.server.workers.accepting import SharedSocket
from osd.server.workers.board import Board, Line, Phase
from osd.server.workers.order import Order, Posting, packed, unpacked
from osd.server.workers.seat import Seat

from osd.server.exposition import labelled
from osd.server.start import leave_a_core
from storage.settings import load_settings


@pytest.fixture
def bound() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.setblocking(False)
        yield made


def knock(bound: socket.socket) -> socket.socket:
    return socket.create_connection(bound.getsockname())


def test_who_is_behind_holds_back_but_not_for_ever(bound: socket.socket) -> None:
    taken: list[int] = []
    with SharedSocket(bound, lambda: True, lambda: taken.append(1)) as shared, knock(bound):
        refused, began = 0, time.monotonic()
        while not taken:
            try:
                shared.accept()[0].close()
            except BlockingIOError:
                refused += 1
            assert time.monotonic() - began < 30
        assert refused > 1


def test_one_connection_is_taken_at_a_time(bound: socket.socket) -> None:
    with SharedSocket(bound, lambda: False, lambda: None) as shared, knock(bound), knock(bound):
        shared.accept()[0].close()
        with pytest.raises(BlockingIOError):
            shared.accept()
        shared.accept()[0].close()


def test_seats_see_each_others_load_and_one_leads(tmp_path: Path) -> None:
    one, two = Seat(tmp_path, 0, 2, 10), Seat(tmp_path, 1, 2, 11)
    assert one.others() == [] == two.others(), "none serves yet"
    for seat in (one, two):
        seat.write(phase=Phase.SERVING)
    one.write(connections=2, running=1, waiting=4)
    assert (two.others()[0].load, [line.pid for line in two.all()]) == (7, [10, 11])
    assert one._is_behind() and not two._is_behind()
    two._take()
    two.write(connections=7)
    assert two._is_behind() and not one._is_behind(), "as much to do, and it took one just now"
    one.write(phase=Phase.DRAINING)
    assert two.others() == [] and len(two.all()) == 2
    assert one.leads() and one.leads()
    one.close()
    assert [line.pid for line in two.all()] == [11]
    two.close()


def test_a_board_that_is_there_is_kept(tmp_path: Path) -> None:
    first = Board(tmp_path, 3)
    first.write(2, **Line(7, Phase.SERVING, 1, 2, 3)._asdict())
    second = Board(tmp_path, 3)
    assert second.read() == [Line(), Line(), Line(7, Phase.SERVING, 1, 2, 3)]
    first.close()
    second.close()


def test_what_each_measured_has_its_label_and_who_is_silent_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = b'# HELP osd_n_total N.\n# TYPE osd_n_total counter\nosd_n_total{path="/"} 3.0\n'

    async def measured() -> bytes:
        return text

    async def ask() -> dict[int, bytes]:
        seats = [Seat(tmp_path, number, 3, number) for number in range(3)]
        for seat in seats:
            seat.write(phase=Phase.SERVING)
        async with await seats[1].expose(measured):
            found = await seats[0].measured()
        for seat in seats:
            seat.close()
        return found

    found = asyncio.run(ask())
    assert found == {1: text} and "worker 2 does not say" in caplog.text
    shown = labelled({0: text, **found}).decode()
    assert 'osd_n_total{path="/",worker="0"} 3.0' in shown and 'osd_n_total{path="/",worker="1"} 3.0' in shown
    assert shown.count("# TYPE osd_n_total counter") == 1


def test_an_order_comes_back_as_it_was() -> None:
    order = Order(Path("/etc/osd.toml"), {"server": {"port": 1}}, "target", None, required=True)
    posting = Posting(1, 2, "/tmp/x", 5, 6, "host:7")
    assert unpacked(packed(order, posting)) == (order, posting)


def test_a_core_is_left_over_unless_somebody_said_how_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    found = []
    for cores, processes in ((1, 1), (2, 1), (16, 1), (16, 3), (4, 8)):
        monkeypatch.setattr("osd.server.start.usable_cores", lambda cores=cores: cores)
        found.append(leave_a_core(load_settings(), processes).serve.threads)
    assert found == [1, 1, 15, 5, 1]
    assert leave_a_core(load_settings(serve={"threads": 4})).serve.threads == 4
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert leave_a_core(load_settings()).serve.threads is None, "torch does as it says"
