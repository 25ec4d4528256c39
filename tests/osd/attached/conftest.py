"""A fake vLLM around the real plugin, behind a port; and a collector that attends to it."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from osd.attached.attach import Attachment
from osd.attached.collector import make_collector
from osd.attached.intake import Intake
from osd.attached.passes import Scorer
from osd.attached.vllm.engine import VllmEngine
from osd.models.model_digest import model_digest
from storage.records import Route
from storage.settings import Settings
from storage.store import Store
from tests.support.fake_vllm import TOKEN, FakeEngine, make_app, plugin
from tests.support.models import noisy, random_module
from tests.support.settings import settings_of
from tests.support.vllm_sources import fake_vllm_module, write_sources
from tests.support.waiting import until


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of a target, of a draft that is sometimes right, and of a better one."""
    root = tmp_path_factory.mktemp("vllm")
    target = random_module("llama")
    for name, module in {"target": target, "draft": noisy(target, 0.4), "better": noisy(target, 0.1)}.items():
        module.save_pretrained(root / name)
    (root / "target" / "tokenizer.json").write_text("{}")
    return {name: root / name for name in ("target", "draft", "better")} | {"root": root}


@pytest.fixture
def fake(tmp_path: Path, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeEngine]:
    """The engine behind the fake."""
    monkeypatch.setenv("OSD_VLLM_TOKEN", TOKEN)
    monkeypatch.setenv("OSD_VLLM_ENGINE", "gpu-1")
    monkeypatch.setenv("OSD_VLLM_FOLDERS", f"{folders['root']}:{tmp_path}")
    sources = write_sources(tmp_path / "vllm")
    monkeypatch.setitem(sys.modules, "vllm", fake_vllm_module("0.32.0", sources))
    plugin(monkeypatch)
    yield FakeEngine(folders["target"], folders["draft"], 3)


class Running:
    """An ASGI application behind a port."""

    def __init__(self, app: Any, port: int = 0) -> None:
        self.server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error"))
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        until(lambda: self.server.started)
        self.port: int = self.server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_of(
        storage__directory=str(tmp_path / "data"), storage__holdout=0.0, attach__poll_seconds=0.05,
        serve__swap_poll_seconds=0.05,
    )  # fmt: skip


@dataclass
class Attached:
    """A running vLLM with the plugin, a running collector, and what attends to the vLLM once it is entered."""

    store: Store
    attachment: Attachment
    intake: Intake
    collector: Running
    vllm: Running
    folders: dict[str, Path]
    root: str = ""

    @property
    def client(self) -> VllmEngine:
        return VllmEngine(self.vllm.url, TOKEN)

    def enter(self) -> None:
        """Enter the draft, its route and the engine."""
        facts = self.client.probe()
        assert facts.digest == model_digest(str(self.folders["target"]))
        self.root = self.store.versions.register_root("sql", self.folders["draft"], target=facts.digest).id
        self.store.routes.add(Route("sql", "sql"))
        self.store.engines.add(facts.name, self.vllm.url, "sql", {})

    def attend(self) -> None:
        """Enter it and attend to it."""
        self.enter()
        self.attachment.start()
        until(lambda: self.store.versions.serving("sql") == {"gpu-1": self.root})

    def request_ids(self) -> list[str]:
        return [one.request_id for one in self.store.outcomes.recent()]

    def trouble(self) -> str:
        """What is wrong with the engine, as the store's list of servers has it."""
        return next((worker.trouble or "" for worker in self.store.servers.list()), "")


@contextmanager
def attached(
    store: Store, settings: Settings, fake: FakeEngine, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch,
    scorer: Scorer | None = None,
) -> Iterator[Attached]:  # fmt: skip
    """Run both; nothing is entered yet."""
    attachment = Attachment(store, settings, lambda settings, url, facts: VllmEngine(url, TOKEN))
    intake = Intake(store, settings, attachment.followers, scorer=scorer)
    collector = Running(make_collector(intake, TOKEN, 1 << 20))
    monkeypatch.setenv("OSD_VLLM_COLLECTOR", collector.url)
    monkeypatch.setattr(importlib.import_module("osd_vllm.sender"), "WAIT", 0.05)
    vllm = Running(make_app(fake))
    try:
        yield Attached(store, attachment, intake, collector, vllm, folders)
    finally:
        intake.close()
        attachment.close()
        vllm.stop()
        collector.stop()


@pytest.fixture
def home(
    store: Store, settings: Settings, fake: FakeEngine, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Attached]:
    """Both, running."""
    with attached(store, settings, fake, folders, monkeypatch) as made:
        yield made


def ask(engine: Running, prompt: list[int], key: str = "", **body: Any) -> list[int]:
    asked = {"prompt": prompt, "max_tokens": 12, "temperature": 0, "return_token_ids": True, **body}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    request = urllib.request.Request(engine.url + "/v1/completions", json.dumps(asked).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        ids: list[int] = json.loads(answer.read())["choices"][0]["token_ids"]
        return ids


def better(store: Store, folders: dict[str, Path], parent: str) -> str:
    """A newer version, current at once."""
    made = store.versions.stage("sql", parent, "full", lambda folder: copy(folders["better"], folder))
    store.versions.promote(made.id)
    return made.id


def copy(source: Path, folder: Path) -> None:
    """Copy a model's folder, also into one that is there."""
    shutil.copytree(source, folder, dirs_exist_ok=True)
