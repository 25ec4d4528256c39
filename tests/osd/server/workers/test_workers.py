"""Several processes behind one port: spread, killed, drained, stopped."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.osd.server.conftest import Server, serving, start
from tests.osd.server.test_running import open_stream
from tests.osd.server.workers.conftest import LONG, OPTIONS, alive, ask, fleet, is_running, kill, listed
from tests.support import launch
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, pair_folder: Path) -> Iterator[Server]:
    with fleet(tmp_path_factory.mktemp("fleet"), pair_folder) as made:
        yield made


def by_worker(server: Server, name: str) -> dict[str, float]:
    """A metric's sums by process."""
    text = httpx.get(f"{server.admin_url}/metrics", timeout=PATIENCE).text
    sums: dict[str, float] = {}
    for labels, value in re.findall(rf"^{name}\{{(.*)\}} (\S+)$", text, re.MULTILINE):
        (worker,) = re.findall(r'worker="(\d+)"', labels)
        sums[worker] = sums.get(worker, 0) + float(value)
    return sums


def keep_both_busy(server: Server, streams: ExitStack) -> None:
    """Open streams until both processes have some: the system spreads connections by chance."""
    until_both_run(server, lambda: streams.enter_context(open_stream(server, max_tokens=1900)))


def until_both_run(server: Server, begin: Callable[[], object]) -> None:
    """Begin requests until both processes have two of them."""

    def both() -> bool:
        begin()
        return min(row["running"] for row in alive(server).values()) >= 2

    until(both, "both processes have some")


def osd(server: Server, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "osd.cli.main", *arguments]
    environment = {"OSD_STORAGE__DIRECTORY": str(server.data), "PATH": "/usr/bin", "COLUMNS": "300"}
    return launch.run(command, env=environment)


def test_connections_are_spread_and_every_answer_is_the_same(server: Server) -> None:
    with ExitStack() as streams:
        keep_both_busy(server, streams)
        texts = [ask(server, max_tokens=60)["choices"][0]["text"] for _ in range(8)]
    assert len(set(texts)) == 1


def test_the_admin_port_sees_all_processes(server: Server) -> None:
    facts = server.get("/admin/servers").json()
    assert [row["state"] for row in facts["servers"]] == ["serving", "serving"]
    assert {row["worker"] for row in facts["serving"]} == set(alive(server))
    with httpx.stream("GET", f"{server.admin_url}/admin/events", timeout=PATIENCE) as stream:
        snapshot = json.loads(next(line for line in stream.iter_lines() if line.startswith("data"))[6:])
    assert (snapshot["workers"], snapshot["rows"]) == (2, 16)
    assert len(by_worker(server, "osd_engine_steps_total")) == 2


def test_the_list_says_what_each_drafts_with(server: Server) -> None:
    for row in listed(server):
        (draft,) = row["drafts"]
        assert draft["draft"] == "default" and draft["routes"] == ["default"]
        assert draft["matches"] and not draft["canary"]
        with server.store() as store:
            assert store.versions.get(draft["version"]).digest == draft["digest"]
    shown = osd(server, "servers", "list")
    assert shown.returncode == 0 and shown.stdout.count("✓") == 2, shown
    rows = json.loads(osd(server, "servers", "list", "--json").stdout)
    assert {row["id"] for row in rows} == set(alive(server))
    unknown = osd(server, "servers", "drain", "nobody:1")
    assert unknown.returncode == 3 and all(name in unknown.stderr for name in alive(server)), unknown.stderr


def test_a_killed_worker_costs_its_own_clients_their_answers_and_nothing_else(server: Server) -> None:
    """Streams run on both; one process is killed in mid-stream."""
    ask(server)
    threads: list[threading.Thread] = []
    texts, errors = [], []

    def read(started: threading.Event) -> None:
        body = {**LONG, "stream": True}
        try:
            with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=PATIENCE) as answer:
                pieces = []
                for line in answer.iter_lines():
                    started.set()
                    if line.startswith("data: {"):
                        said = json.loads(line[6:])
                        if "error" in said:
                            errors.append(said["error"]["code"])
                            return
                        pieces.append(said["choices"][0]["text"])
                texts.append("".join(pieces))
        except httpx.TransportError as error:
            errors.append(error)

    victim = min(alive(server).values(), key=lambda row: row["pid"])
    admin = server.get("/admin/servers").status_code

    def begin() -> None:
        started = threading.Event()
        threads.append(threading.Thread(target=read, args=(started,)))
        threads[-1].start()
        assert started.wait(PATIENCE)

    until_both_run(server, begin)
    kill(victim["pid"])
    for thread in threads:
        thread.join(PATIENCE)
    assert admin == 200 and len(texts) + len(errors) == len(threads)
    assert texts and errors and len(set(texts)) == 1, "the others' streams went on to their end"
    assert set(errors) == {"engine_failed"}, "what answers HTTP lives on until everybody has been told"

    def replaced() -> bool:
        rows = {row["id"]: row["state"] for row in listed(server)}  # one look: between two the dead one may turn gone
        return victim["id"] not in rows and list(rows.values()) == ["serving", "serving"]

    until(replaced, "another stands in the dead one's place, whose row is gone")
    until(lambda: server.get("/admin/servers").status_code == 200, "somebody answers the admin port")
    assert ask(server)["choices"][0]["text"]
    with server.store() as store:
        assert store.samples.sweep() == [] and store.samples.recent(limit=99), "nothing is half-written"
        assert [draft for worker in store.versions.serving() for draft in [worker]] == sorted(alive(server))
    assert f"(process {victim['pid']}) ended with signal 9" in server.log


def _drained_and_taken_back(server: Server, name: str) -> None:
    """While streams run on both, one is told to drain, and then to serve on: it takes connections again."""
    with ExitStack() as streams, server.store() as store:
        keep_both_busy(server, streams)
        store.servers.ask_drain(name)
        until(lambda: {row["id"]: row["state"] for row in listed(server)}[name] == "draining", "it drains")
        store.servers.ask_drain(name, undo=True)
        until(lambda: len(alive(server)) == 2, "it serves again")
    before = by_worker(server, "osd_http_requests_total")

    def both_answer() -> bool:
        ask(server)
        now = by_worker(server, "osd_http_requests_total")
        return all(now[worker] > before[worker] for worker in ("0", "1"))

    until(both_answer, "connections come to both")


def test_when_the_parent_is_killed_its_children_drain(tmp_path: Path, pair_folder: Path) -> None:
    named = ["--target", str(pair_folder / "target"), "--draft", str(pair_folder / "draft"), "--processes", "2"]
    with serving(tmp_path, *named, OSD_FLEET__HEARTBEAT_SECONDS="0.2") as server:
        until(lambda: len(alive(server)) == 2, "both are listed")
        pids = [row["pid"] for row in listed(server)]
        kill(server.process.pid)
        until(lambda: not any(map(is_running, pids)), "they end by themselves")
        until(lambda: listed(server) == [], "in order")


def test_one_drains_while_the_other_serves_on_until_their_parent_is_killed(tmp_path: Path, pair_folder: Path) -> None:
    named = ["--target", str(pair_folder / "target"), "--draft", str(pair_folder / "draft"), "--processes", "2"]
    with serving(tmp_path, *named, **OPTIONS) as server, ExitStack() as stack:
        until(lambda: len(alive(server)) == 2, "both are listed")
        leaving, staying = sorted(alive(server))
        keeping = stack.enter_context(httpx.Client(base_url=server.url, timeout=PATIENCE))
        assert keeping.post("/v1/completions", json={**LONG, "max_tokens": 2}).status_code == 200
        _drained_and_taken_back(server, leaving)
        done = osd(server, "servers", "drain", leaving)
        assert done.returncode == 0, done.stderr
        until(lambda: list(alive(server)) == [staying], "one is left")
        for _ in range(4):
            assert ask(server)["choices"]
            assert keeping.post("/v1/completions", json={**LONG, "max_tokens": 2}).status_code == 200
        until(lambda: leaving not in {row["id"] for row in listed(server)}, "it has stopped and is listed no more")
        until(lambda: not is_running(int(leaving.rpartition(":")[2])), "its process has ended")
        assert "is started in" not in server.log
        until(lambda: server.get("/admin/servers").status_code == 200, "the other answers the admin port")
        kill(server.process.pid)
        until(lambda: not is_running(int(staying.rpartition(":")[2])), "it drains and ends by itself")
        until(lambda: listed(server) == [], "in order")


def test_an_error_at_the_start_is_told_once_and_ends_it(tmp_path: Path, pair_folder: Path) -> None:
    server = start(tmp_path, "--processes", "2", "--target", str(pair_folder), "--draft", str(pair_folder / "draft"))
    assert server.process.wait(PATIENCE) == 4, server.log
    assert "is started in" not in server.log
