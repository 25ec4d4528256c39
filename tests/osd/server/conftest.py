"""Real server processes on free ports, and the same pair in this process to compare with."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import httpx
import openai
import pytest
import torch

from osd.demo import DRAFT, TARGET
from osd.models.pair import Pair, load_pair
from storage.access.keys import ApiKey
from storage.settings import load_settings
from storage.store import Store, open_store
from tests.support.launch import Process
from tests.support.waiting import PATIENCE, until

READY = re.compile(r"Serving (http://\S+)/v1, admin routes at (http://\S+)/admin")
Make = Callable[..., tuple[str, ApiKey]]


HERE = Path(__file__).parent
SHARED = ("guarded", "server", "served", "one_replica", "two_replicas")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share a server stay on one worker of pytest-xdist (``--dist loadgroup``)."""
    for item in items:
        shared = [name for name in SHARED if name in getattr(item, "fixturenames", ())]
        if shared and HERE in item.path.parents:
            item.add_marker(pytest.mark.xdist_group(f"{item.path.parent.name} {shared[0]}"))


@dataclass
class Server:
    """One `osd serve`."""

    process: subprocess.Popen[str]
    url: str
    admin_url: str
    data: Path
    errors: Path
    key: str = ""
    """What it is asked with."""

    @property
    def log(self) -> str:
        """What it wrote to stderr."""
        return self.errors.read_text()

    @property
    def headers(self) -> dict[str, str]:
        """What says who asks."""
        return {"authorization": f"Bearer {self.key}"} if self.key else {}

    def client(self, key: str = "") -> openai.OpenAI:
        """The official client."""
        key = key or self.key or "none"
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=PATIENCE)

    def get(self, path: str) -> httpx.Response:
        """A plain request; paths below /admin go to the admin port."""
        url = self.admin_url if path.startswith("/admin") else self.url
        return httpx.get(url + path, headers=self.headers, timeout=PATIENCE)

    def post(self, path: str, body: object = None, **options: object) -> httpx.Response:
        """A plain request; ``body`` is JSON, or bytes as they are."""
        content = {"content": body} if isinstance(body, bytes) else {"json": body}
        headers = {"content-type": "application/json", **self.headers, **options.pop("headers", {})}  # type: ignore[dict-item]
        return httpx.post(f"{self.url}{path}", headers=headers, timeout=PATIENCE, **content, **options)  # type: ignore[arg-type]

    def snapshot(self) -> dict[str, object]:
        """The engine as its admin events show it."""
        metrics = self.get("/metrics").text
        return {name: float(value) for name, value in re.findall(r"^(osd_requests_\w+) (\S+)$", metrics, re.MULTILINE)}

    @contextmanager
    def store(self) -> Iterator[Store]:
        """Its store."""
        with open_store(load_settings(storage={"directory": self.data})) as store:
            yield store


def start(folder: Path, *options: str, **variables: str) -> Server:
    """A server that is not ready yet, over the pair that ships with osd."""
    folder.mkdir(parents=True, exist_ok=True)
    data, errors = folder / "data", folder / "stderr"
    surroundings = {
        **os.environ, "OSD_STORAGE__DIRECTORY": str(data), "OMP_NUM_THREADS": "1", "OSD_GAMMA__RULE": "fixed",
        "COLUMNS": "300", **variables,
    }  # fmt: skip
    command = [sys.executable, "-m", "osd.cli.main", "serve", "--port", "0", "--admin-port", "0", *options]
    with errors.open("w") as log:
        process = Process(command, cwd=folder, env=surroundings, stderr=log, text=True)
    return Server(process, "", "", data, errors)


@contextmanager
def serving(folder: Path, *options: str, **variables: str) -> Iterator[Server]:
    """A server that listens; it is killed if it has not ended by then."""
    server = start(folder, *options, **variables)
    try:
        until(lambda: READY.search(server.log) or server.process.poll() is not None, "the server is ready")
        found = READY.search(server.log)
        assert found, server.log
        server.url, server.admin_url = (url.replace("0.0.0.0", "127.0.0.1") for url in found.groups())
        yield server
    finally:
        server.process.kill()
        server.process.wait()


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One for all tests that leave it as they found it."""
    with serving(tmp_path_factory.mktemp("server"), OSD_SERVE__MAX_LENGTH="512", OSD_SERVER__MAX_CHOICES="4") as made:
        yield made


@pytest.fixture(scope="package")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that asks for keys, of one row, in whose line sixteen may wait."""
    options = {
        "OSD_SERVER__KEYS_POLL_SECONDS": "0.1", "OSD_STORAGE__FLUSH_SECONDS": "0.1", "OSD_SERVE__MAX_BATCH": "1",
        "OSD_SERVER__QUEUE": "16",
    }  # fmt: skip
    with serving(tmp_path_factory.mktemp("guarded"), "--model-name", "toy", **options) as made:
        with made.store() as store:
            key, _ = store.keys.create("own", scopes=["infer", "metrics", "admin"])
        for path in ("/v1/models", "/admin/drafts"):
            until(lambda path=path: made.get(path).status_code == 401, "the first key closes the door")
        made.key = key
        yield made


@pytest.fixture
def make(guarded: Server) -> Make:
    """Makes a key that both processes of the server know."""

    def made(tenant: str = "acme", **options: object) -> tuple[str, ApiKey]:
        with guarded.store() as store:
            secret, key = store.keys.create(tenant, **options)  # type: ignore[arg-type]
        probe = {"authorization": f"Bearer {secret}"}
        for url in (f"{guarded.url}/v1/models", f"{guarded.admin_url}/admin/drafts"):
            until(lambda url=url: httpx.get(url, headers=probe).status_code != 401, "the key is known")
        return secret, key

    return made


@pytest.fixture(scope="package")
def client(server: Server) -> openai.OpenAI:
    """The official client of that server."""
    return server.client()


@pytest.fixture(scope="session")
def pair() -> Pair:
    """The pair that the server serves with."""
    torch.set_num_threads(1)
    return load_pair(TARGET, DRAFT)


@pytest.fixture(scope="session")
def plain(pair: Pair) -> Callable[[str, int], str]:
    """The plain reference: greedy text by transformers with the target alone."""

    @cache
    def text(prompt: str, count: int) -> str:
        tokens = torch.tensor([pair.tokenizer.encode(prompt)])
        made = pair.target.module.generate(
            tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=count, do_sample=False, pad_token_id=0
        )
        return str(pair.tokenizer.decode(made[0, tokens.shape[1] :], skip_special_tokens=True))

    return text
