"""A running system, scraped as docs/watching.md says: no panel of the dashboard and no alert is without its numbers."""

# ruff: noqa: F811  (fixtures are imported by name)
from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from osd.attached.vllm.engine import VllmEngine
from osd.attached.vllm.plugin.osd_vllm.lengths import LiveLengths
from osd.server.metrics import families
from storage.records import Route
from tests.osd.attached.conftest import Running, ask, fake, folders  # noqa: F401
from tests.osd.attached.test_lengths import NAME as SCHEDULER
from tests.osd.attached.test_lengths import go
from tests.osd.server.conftest import Server, serving
from tests.support.fake_vllm import TOKEN, FakeEngine, make_app
from tests.support.launch import Process
from tests.support.waiting import until

pytestmark = pytest.mark.long
DOCS = Path(__file__).resolve().parents[2] / "docs"
NAME = re.compile(r"\b(?:osd_|vllm:)[a-z0-9_:]+")
LISTENS = re.compile(r"http://127\.0\.0\.1:\d+")


class Beside:
    """A command of osd beside a server, over its store."""

    def __init__(self, server: Server, name: str, *options: str) -> None:
        self.log = server.data.parent / f"{name}.log"
        told = {
            **os.environ, "OSD_STORAGE__DIRECTORY": str(server.data), "OMP_NUM_THREADS": "1", "COLUMNS": "300",
            "OSD_VLLM_TOKEN": TOKEN, "OSD_ATTACH__PORT": "0", "OSD_ATTACH__ADMIN_PORT": "off",
            "OSD_LEARN__EPOCHS": "1", "OSD_LEARN__HEAD": "off",
        }  # fmt: skip
        with self.log.open("w") as log:
            command = [sys.executable, "-m", "osd.cli.main", name, *options]
            self.process: subprocess.Popen[Any] = Process(command, cwd=server.data.parent, env=told, stderr=log)

    @property
    def url(self) -> str:
        """Where it listens."""
        until(lambda: LISTENS.search(self.log.read_text()), f"{self.log.name} listens")
        found = LISTENS.search(self.log.read_text())
        assert found
        return found[0]

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(60)


@contextmanager
def attached(
    server: Server, attach: Beside, fake: FakeEngine, folders: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """A fake vLLM that measures what drafting gains, attended to, of which an answer was taken."""
    lengths = server.data.parent / "gamma"
    monkeypatch.setenv("OSD_VLLM_GAMMA", str(lengths))
    monkeypatch.setenv("OSD_VLLM_COLLECTOR", attach.url)
    engine = Running(make_app(fake, scheduler=SCHEDULER))
    go(measured := LiveLengths(lengths, 16, 3), 2000)
    measured._tell()
    with server.store() as store:
        store.versions.register_root("sql", folders["draft"], target=VllmEngine(engine.url, TOKEN).probe().digest)
        store.routes.add(Route("sql", "sql"))
        store.engines.add("gpu-1", engine.url, "sql", {})
        until(lambda: store.versions.serving("sql"), "it is attended to")
    ask(engine, [5, 9, 3])
    yield
    engine.stop()


@pytest.fixture
def system(
    tmp_path: Path, fake: FakeEngine, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, str]]:
    """A server, a trainer, an attach with a vLLM, and the exporter; the URL of each job of the documented scrape."""
    with serving(tmp_path, OSD_STORAGE__FLUSH_SECONDS="0.1") as server:
        beside = [Beside(server, name, *more) for name, *more in (["trainer"], ["metrics", "--port", "0"], ["attach"])]
        for number in range(10):
            server.post("/v1/completions", {"prompt": f"SELECT {number} FROM", "max_tokens": 12})
        with server.store() as store:
            until(lambda: [run for run in store.runs.list() if run.finished_at], "a training run")
        for number in range(3):  # these wait for the next one
            server.post("/v1/completions", {"prompt": f"How many of {number}?", "max_tokens": 12})
        with attached(server, beside[2], fake, folders, monkeypatch):
            yield {"osd": beside[1].url, "osd-server": server.url, "osd-attach": beside[2].url}
        for process in beside:
            process.close()


def test_every_number_that_is_shown_or_watched_is_there(system: dict[str, str]) -> None:
    until(lambda: not asked() - scraped(system).keys(), f"numbers for {asked() - scraped(system).keys()}")
    places = scraped(system)
    twice = {name: jobs for name, jobs in places.items() if len(jobs) > 1 and name.startswith("osd_")}
    assert not twice, "each number has one place"
    assert {"osd_recorder_seconds_total", "osd_engine_steps_total"} <= places.keys()


def asked() -> set[str]:
    """The names in the dashboard's panels and the alerts."""
    board = json.loads((DOCS / "monitoring" / "grafana.json").read_text())
    rules = yaml.safe_load((DOCS / "monitoring" / "alerts.yml").read_text())["groups"][0]["rules"]
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    named = {name for one in [*expressions, *(rule["expr"] for rule in rules)] for name in NAME.findall(one)}
    return named - {metric.shown for metric in families.UPSTREAM}  # of `osd serve --upstream`, which is another system


def scraped(system: dict[str, str]) -> dict[str, set[str]]:
    """The names that have a number, and the jobs that have them after the relabelling of the documented scrape."""
    page = (DOCS / "watching.md").read_text()
    jobs = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)[0])["scrape_configs"]
    places: dict[str, set[str]] = {}
    for job in jobs:
        dropped = [re.compile(rule["regex"]) for rule in job.get("metric_relabel_configs", ())]
        with urllib.request.urlopen(system[job["job_name"]] + "/metrics", timeout=60) as answer:
            text = answer.read().decode()
        for family in text_string_to_metric_families(text):
            for name in {sample.name for sample in family.samples}:
                if not any(rule.fullmatch(name) for rule in dropped):
                    places.setdefault(name, set()).add(job["job_name"])
    return places
