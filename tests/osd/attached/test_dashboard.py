"""`osd attach` as a process of its own, beside a fake vLLM with the real plugin: what its admin port shows, to whom."""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from osd.attached.vllm.engine import VllmEngine
from osd.attached.vllm.plugin.osd_vllm.lengths import LiveLengths
from osd.server.metrics.store import StoreCollector
from storage.records import Route
from storage.settings import Settings
from storage.store import Store
from tests.osd.attached.conftest import Running, ask
from tests.osd.attached.test_lengths import NAME, go
from tests.support.fake_vllm import TOKEN, FakeEngine, make_app
from tests.support.launch import Process, run
from tests.support.waiting import PATIENCE, until

SAID = re.compile(r"Taking answers at (http://\S+), from .*? engines\.(?: Dashboard: (http://\S+)/dashboard\.)?")


@dataclass
class Attending:
    """One `osd attach`."""

    process: Any
    log: Path
    store: Store
    url: str = ""
    admin_url: str = ""

    def get(self, path: str, key: str = "", **headers: str) -> httpx.Response:
        """Ask the admin port."""
        own = {"authorization": f"Bearer {key}"} if key else {}
        return httpx.get(self.admin_url + path, headers=own | headers, timeout=PATIENCE)

    def engine(self) -> dict[str, Any]:
        """What the page knows of its one engine; empty before there is one."""
        rows = self.get("/admin/dashboard/engines").json()
        return dict(rows[0]) if rows else {}


def variables(settings: Settings, **more: str) -> dict[str, str]:
    return {
        **os.environ, "OSD_STORAGE__DIRECTORY": str(settings.storage.directory), "OSD_ATTACH__PORT": "0",
        "OSD_ATTACH__ADMIN_PORT": "0", "OSD_ATTACH__POLL_SECONDS": "0.05", "OSD_SERVER__KEYS_POLL_SECONDS": "0.1",
        "OMP_NUM_THREADS": "1", "COLUMNS": "300", **more,
    }  # fmt: skip


@contextmanager
def attending(store: Store, settings: Settings, folder: Path, **more: str) -> Iterator[Attending]:
    """Start it, and stop it in order."""
    log = folder / "attach.log"
    with log.open("w") as errors:
        command = [sys.executable, "-m", "osd.cli.main", "attach"]
        process = Process(command, cwd=folder, env=variables(settings, **more), stderr=errors)
    made = Attending(process, log, store)
    try:
        until(lambda: SAID.search(log.read_text()) or process.poll() is not None, "it listens")
        found = SAID.search(log.read_text())
        assert found, log.read_text()
        made.url, made.admin_url = found[1], found[2] or ""
        yield made
    finally:
        process.terminate()
        assert process.wait(60) == 143, log.read_text()


@pytest.fixture
def vllm(fake: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """A vLLM that measures what drafting gains."""
    monkeypatch.setenv("OSD_VLLM_GAMMA", str(tmp_path / "gamma"))
    importlib.import_module("osd_vllm.options").options.cache_clear()
    lengths = LiveLengths(tmp_path / "gamma", 16, 3)
    go(lengths, 4000)
    lengths._tell()
    monkeypatch.setattr(importlib.import_module("osd_vllm.sender"), "WAIT", 0.05)
    running = Running(make_app(fake, scheduler=NAME))
    yield running
    running.stop()


@pytest.fixture
def home(
    store: Store, settings: Settings, vllm: Running, folders: dict[str, Path], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Attending]:  # fmt: skip
    """`osd attach` over that vLLM, which hands its answers over to it."""
    store.versions.register_root("sql", folders["draft"], target=VllmEngine(vllm.url, TOKEN).probe().digest)
    store.routes.add(Route("sql", "sql"))
    store.engines.add("gpu-1", vllm.url, "sql", {})
    with attending(store, settings, tmp_path) as made:
        sender = importlib.import_module("osd_vllm.sender").sender()
        monkeypatch.setattr(sender, "options", replace(sender.options, collector=made.url))
        yield made


def test_the_page_shows_an_attached_engine_its_answers_and_what_drafting_gains(home: Attending, vllm: Running) -> None:
    page = home.get("/dashboard")
    assert page.status_code == 200 and 'id="engines"' in page.text
    for name in ("engines.js", "plotly.min.js"):
        assert home.get(f"/dashboard/{name}").status_code == 200
    for number in range(3):
        ask(vllm, [7 + number, 30, 41])
    until(lambda: home.engine()["requests"] == 3 and home.engine()["gain"], "it answers and gains")
    one, (total,) = home.engine(), home.store.outcomes.acceptance(["engine"])
    assert one["up"] and one["state"].endswith(f":{home.process.pid}") and one["drafting"].startswith("drafts: ")
    assert (one["alpha"], one["answered_at"]) == (total.alpha, home.store.outcomes.newest()["gpu-1"])
    (server,) = home.get("/admin/servers").json()["servers"]
    assert (server["id"], server["state"], server["drafts"][0]["matches"]) == ("gpu-1", "serving", True)
    metrics = home.get("/metrics").text
    for said in ('up{draft="sql",engine="gpu-1"} 1.0', 'drafting{engine="gpu-1"} 1.0', 'gain{engine="gpu-1"} '):
        assert f"osd_attached_{said}" in metrics
    vllm.stop()
    until(lambda: not home.engine()["up"], "it is gone")
    assert home.engine()["state"].startswith("does not answer")


def test_a_browser_shows_it(home: Attending, vllm: Running, tmp_path: Path) -> None:
    from tests.support.browser import chromium

    for number in range(3):
        ask(vllm, [7 + number, 30, 41])
    home.store.engines.add("gpu-2", "http://127.0.0.1:9", "sql", {})
    with chromium(tmp_path / "browser") as page:
        page.open(f"{home.admin_url}/")
        until(lambda: page.number("Acceptance α") is not None and page.all("#inside-one .text"), "numbers and a text")
        until(lambda: page.number("Acceptance α") is not None and page.all("#inside-one .text"), "numbers, a text")
        assert page.all("#engines .badge.good") and page.all("#engines .badge.bad")
        assert page.complaints() == []


def test_what_an_engine_drops_is_counted_and_a_snapshot_has_its_acceptance(home: Attending, vllm: Running) -> None:
    ask(vllm, [7, 30, 41])
    importlib.import_module("osd_vllm.sender").sender().counts["dropped"] += 2
    until(lambda: home.engine()["dropped"] == 2 and home.engine()["requests"] == 1, "both are known")
    samples = {family.name: family.samples for family in StoreCollector(home.store).collect()}
    assert [one.value for one in samples["osd_attached_dropped_answers"]] == [2]
    with httpx.stream("GET", f"{home.admin_url}/admin/events", timeout=PATIENCE) as events:
        data = next(line for line in events.iter_lines() if line.startswith("data: "))
    snapshot = json.loads(data.removeprefix("data: "))
    assert snapshot["model"] == "attached engines" and snapshot["ready"] and "rows" not in snapshot
    assert [row["route"] for row in snapshot["routes"]] == ["sql"]
    (listed,) = home.get("/admin/dashboard/inside").json()["requests"]
    assert "prompt" in home.get(f"/admin/dashboard/inside/{listed['id']}").json()


def test_a_key_closes_the_admin_routes_and_hides_texts(home: Attending, vllm: Running) -> None:
    ask(vllm, [7, 30, 41])
    until(lambda: home.get("/admin/dashboard/inside").json()["requests"], "it is kept")
    assert home.get("/admin/drafts", host="evil.example").status_code == 403, "without keys, for this machine alone"
    plain, admin = (home.store.keys.create("own", scopes=[scope])[0] for scope in ("infer", "admin"))
    until(lambda: home.get("/admin/drafts").status_code == 401, "the first key closes the door")
    for path in ("/admin/dashboard/engines", "/admin/servers", "/metrics"):
        assert home.get(path).status_code == 401 and home.get(path, plain).status_code == 403
    assert home.get("/admin/dashboard/engines", admin).status_code == 200 == home.get("/dashboard").status_code
    assert home.get("/admin/dashboard/inside", admin).json() == {"allowed": False, "requests": []}


def test_it_is_not_there_where_it_is_off(store: Store, settings: Settings, fake: FakeEngine, tmp_path: Path) -> None:
    with attending(store, settings, tmp_path, OSD_ATTACH__ADMIN_PORT="off") as made:
        assert made.admin_url == "" and httpx.get(f"{made.url}/health").status_code == 200
        assert httpx.get(f"{made.url}/dashboard").status_code == 404
        refused = run(
            [sys.executable, "-m", "osd.cli.main", "attach"], cwd=tmp_path,
            env=variables(settings, OSD_ATTACH__ADMIN_PORT=made.url.rpartition(":")[2]),
        )  # fmt: skip
    assert refused.returncode == 2 and "attach.admin_port: cannot listen on 127.0.0.1" in refused.stderr


def test_other_machines_are_let_in_with_keys_alone(
    store: Store, settings: Settings, fake: FakeEngine, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "osd.cli.main", "attach"]
    refused = run(command, cwd=tmp_path, env=variables(settings, OSD_ATTACH__ADMIN_HOST="0.0.0.0"))
    assert refused.returncode == 2 and "attach.admin_host" in refused.stderr and "--no-keys" not in refused.stderr
    key, _ = store.keys.create("own", scopes=["admin"])
    with attending(store, settings, tmp_path, OSD_ATTACH__ADMIN_HOST="0.0.0.0") as made:
        made.admin_url = made.admin_url.replace("0.0.0.0", "127.0.0.1")
        assert made.get("/admin/servers").status_code == 401
        assert made.get("/admin/servers", key, host="gpu.example").status_code == 200
