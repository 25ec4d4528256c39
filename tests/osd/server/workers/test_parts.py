"""The parts of several processes behind a port, in one process or a few that load no model."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from osd.server.metrics.exposition import labelled
from osd.server.process.listen import listen, reserve, share
from osd.server.processes import Peers, ServerLoad, Supervisor
from osd.server.start import leave_a_core
from storage.errors import BadSetting
from storage.settings import load_settings

KEY = "server.port"


def accepted(bound: socket.socket) -> int:
    """How many connections wait."""
    bound.setblocking(False)
    count = 0
    try:
        while True:
            bound.accept()[0].close()
            count += 1
    except BlockingIOError:
        return count


def test_connections_are_spread_over_who_listens_and_nobody_else_gets_the_port() -> None:
    """With 64 connections one of two sockets has fewer than 8 with a chance of 1e-10."""
    with reserve("127.0.0.1", 0, KEY) as kept:
        address = kept.getsockname()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
        with share(kept) as one, share(kept) as two:
            for bound in (one, two):
                bound.listen(128)
            with pytest.raises(BadSetting, match="cannot listen"):
                reserve(*address, KEY)
            with pytest.raises(BadSetting, match="cannot listen"):
                listen(*address, KEY)
            knocking = [socket.create_connection(address) for _ in range(64)]
            counts = [accepted(bound) for bound in (one, two)]
            assert sum(counts) == 64 and min(counts) >= 8
            two.close()
            knocking += [socket.create_connection(address) for _ in range(8)]
            assert accepted(one) == 8, "who listens no more gets none"
        for end in knocking:
            end.close()


def test_where_the_system_does_not_spread_connections_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(BadSetting, match=r"fleet.processes: only Linux .* give 1"):
        reserve("127.0.0.1", 0, KEY)


def test_one_process_leads_until_it_ends(tmp_path: Path) -> None:
    peers = Peers(tmp_path, 0)
    said, told = os.pipe()
    if (pid := os.fork()) == 0:
        os.write(told, b"1" if Peers(tmp_path, 1).leads() else b"0")
        signal.pause()
        os._exit(0)
    answers = os.read(said, 1), peers.leads()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert answers == (b"1", False) and peers.leads() and peers.leads()


def test_what_each_says_has_its_label_and_who_is_silent_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = b'# HELP osd_n_total N.\n# TYPE osd_n_total counter\nosd_n_total{path="/"} 3.0\n'

    async def measured() -> bytes:
        return text

    async def ask() -> tuple[dict[int, bytes], list[ServerLoad]]:
        one, two, dead = (Peers(tmp_path, number) for number in range(3))
        assert await one.loads() == []
        with socket.socket(socket.AF_UNIX) as left_behind:
            left_behind.bind(str(dead.socket))
        async with await two.answer(measured, lambda: ServerLoad(True, 1, 4)):
            assert two.serving and not one.serving
            found = await one.metrics(), await one.loads()
            two.leave()
            assert not two.serving and await one.metrics() == {}
        return found

    found, loads = asyncio.run(ask())
    assert found == {1: text} and loads == [ServerLoad(True, 1, 4)] and "server 2 does not answer" in caplog.text
    shown = labelled({0: text, **found}).decode()
    assert 'osd_n_total{path="/",worker="0"} 3.0' in shown and 'osd_n_total{path="/",worker="1"} 3.0' in shown
    assert shown.count("# TYPE osd_n_total counter") == 1


def wait_for_signal(peers: Peers) -> int:
    peers.socket.touch()
    while True:
        time.sleep(60)


def test_a_dead_worker_is_started_anew_and_a_signal_ends_all(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def work(peers: Peers, replaces: str | None) -> int:
        with (tmp_path / f"{peers.number}").open("a") as file:
            print(replaces, file=file)
        if peers.number and not replaces:
            os.kill(os.getpid(), signal.SIGKILL)
        return wait_for_signal(peers)

    readies: list[int] = []

    def ready() -> None:
        readies.append(1)
        os.kill(os.getpid(), signal.SIGTERM)

    assert Supervisor(work, 2, ready).run() == 0 and readies == [1]
    first, second = ((tmp_path / f"{number}").read_text().split() for number in range(2))
    assert first == ["None"] and second[0] == "None" and second[1].startswith(f"{socket.gethostname()}:")
    assert "server 1" in caplog.text and "ended with signal 9; another is started in 0.5 s" in caplog.text


def test_an_error_at_the_start_ends_all_with_its_status(capfd: pytest.CaptureFixture[str]) -> None:
    def work(peers: Peers, replaces: str | None) -> int:
        if peers.number:
            raise BadSetting(source="here", key="this", reason="it is bad")
        return wait_for_signal(peers)

    assert Supervisor(work, 2, lambda: None).run() == BadSetting.exit_code
    assert "osd: here: this: it is bad" in capfd.readouterr().err


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
