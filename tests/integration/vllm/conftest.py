"""One real vLLM (its CPU build, which `make vllm` installs) for all tests of this folder.

It serves the pair that ships with osd, whose draft has random weights, with osd's plugin as it is in this tree, behind
an API key, tapped, with draft lengths that can be changed. Run with `pytest -m vllm`.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.vllm.server import PLUGIN, attach_process, osd_command, plugin_variables, random_draft, speculation
from benchmarks.vllm.server import vllm_server as server
from osd.attached.vllm.engine import VllmEngine
from osd.demo import DRAFT, TARGET
from osd.demo.prompts import prompts as shipped
from osd.demo.runner.circle import own_settings
from osd.demo.runner.process import environment, save_settings
from osd.models.vocabulary import load_tokenizer
from osd.prompts import encode
from storage.settings import Settings
from storage.store import Store, open_store
from tests.support import waiting
from tests.support.fake_vllm import PLUGIN_FOLDER

ROOT = Path(__file__).resolve().parents[3]
PYTHON = Path(os.environ.get("VLLM_PYTHON", ROOT / ".venv-vllm" / "bin" / "python"))
TOKEN, KEY = "the token of a test, long enough", "the key of vLLM"
SECRETS = {"OSD_VLLM_TOKEN": TOKEN, "VLLM_KEY": KEY}
Tokens = tuple[int, ...]
Reply = dict[str, Any]
"""An answer of /v1/completions, with the acceptance of each step."""


@dataclass(frozen=True)
class Serving:
    """The vLLM under test."""

    url: str
    folder: Path
    """Drafts may be loaded from below it."""
    draft: Path
    """What it was started with."""
    port: int
    """Where it hands its answers over."""

    @property
    def engine(self) -> VllmEngine:
        """A client that knows token and key."""
        return VllmEngine(self.url, TOKEN, KEY)

    def ask(self, prompts: Sequence[Tokens], **headers: str) -> list[Reply]:
        """Return the greedy answers, four clients asking."""
        return ask(self.url, prompts, Authorization=f"Bearer {KEY}", **headers)

    def tapped(self) -> dict[str, list[Reply]]:
        """Return what was drafted and emitted, round by round, by the id of the answer."""
        found: dict[str, list[Reply]] = {}
        for line in (self.folder / "tap").read_text().splitlines():
            found.setdefault(json.loads(line)["request"], []).append(json.loads(line))
        return found


@dataclass(frozen=True)
class Home:
    """A store, its settings, and `osd attach` beside it."""

    store: Store
    config: Path
    settings: Settings

    def osd(self, *words: object) -> subprocess.CompletedProcess[str]:
        """Run a command of osd."""
        return subprocess.run(
            osd_command(self.config, *map(str, words)), env=environment() | SECRETS, text=True, capture_output=True
        )  # fmt: skip


@pytest.fixture(scope="session")
def python() -> Path:
    """The Python that has vLLM."""
    if not PYTHON.exists():
        pytest.skip(f"there is no vLLM at {PYTHON}; `make vllm` installs it")
    return PYTHON


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where everything lies."""
    return tmp_path_factory.mktemp("vllm")


@pytest.fixture(scope="session")
def plugin(folder: Path) -> str:
    """The plugin of this tree, and the tap, for vLLM's PYTHONPATH."""
    tap = folder / "tap_module"
    tap.mkdir()
    shutil.copy(ROOT / "tests" / "support" / "vllm_tap.py", tap)
    return f"{PLUGIN_FOLDER}:{tap}"


@pytest.fixture(scope="session")
def vllm(python: Path, folder: Path, plugin: str) -> Iterator[Serving]:
    """The running vLLM."""
    draft, port = random_draft(DRAFT, folder / "draft"), free_port()
    (folder / "gamma.json").write_text("[[1, 4, 4]]")  # else nothing is drafted until it pays
    variables = plugin_variables(folder, TOKEN, f"http://127.0.0.1:{port}") | {
        "PYTHONPATH": plugin, "OSD_TAP": str(folder / "tap"), "OSD_VLLM_GAMMA": str(folder / "gamma.json"),
        "OSD_VLLM_SPOOL": "",
    }  # fmt: skip
    options = (
        *speculation(draft), *PLUGIN, "--worker-extension-cls", "vllm_tap.TappedWorker", "--api-key", KEY,
        "--scheduler-cls", "osd_vllm.scheduler.OsdScheduler", "--max-num-seqs", "4",
    )  # fmt: skip
    with server(python, TARGET, folder / "vllm.log", options, variables) as url:
        yield Serving(url, folder, draft, port)


@contextmanager
def home_of(vllm: Serving, name: str, learn: Mapping[str, Any] | None = None, **attach: object) -> Iterator[Home]:
    """A new store below vLLM's folder, with `osd attach` where vLLM hands its answers over, and its settings."""
    own = own_settings(
        Settings(), vllm.folder / name,
        attach={"host": "127.0.0.1", "port": vllm.port, "admin_port": "off", "api_key": "env:VLLM_KEY", **attach},
        learn={"interval_requests": 32, **(learn or {})}, serve={"target": str(TARGET)},
    )  # fmt: skip
    (vllm.folder / name).mkdir()
    config = save_settings(own, vllm.folder / f"{name}.toml")
    log = vllm.folder / f"{name}-attach.log"
    with open_store(own) as store, attach_process(config, log, SECRETS):
        yield Home(store, config, own)


def ask(url: str, prompts: Sequence[Tokens], model: str | None = None, **headers: str) -> list[Reply]:
    """Return the greedy answers of a vLLM, or of an adapter that it serves, four clients asking."""

    def one(prompt: Tokens) -> Reply:
        body = {"prompt": list(prompt), "max_tokens": 48, "temperature": 0, "return_token_ids": True}
        body |= {"model": model} if model else {}
        headers["Content-Type"] = "application/json"
        asked = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(asked) as answer:
            return dict(json.load(answer))

    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(one, prompts))


def ids_of(replies: Sequence[Reply]) -> list[list[int]]:
    """Return the token ids of answers."""
    return [one["choices"][0]["token_ids"] for one in replies]


def steps_of(reply: Reply) -> tuple[list[int], list[int]]:
    """Return what each step accepted and drafted; nothing where nothing was drafted."""
    spec = (reply.get("metrics") or {}).get("speculative_decoding") or {}
    return spec.get("per_step_accepted") or [], spec.get("per_step_drafted") or []


def acceptance(replies: Sequence[Reply]) -> float:
    """Return accepted ÷ (accepted + rejections)."""
    steps = [step for reply in replies for step in zip(*steps_of(reply), strict=True)]
    accepted = sum(kept for kept, _ in steps)
    return accepted / (accepted + sum(kept < drafted for kept, drafted in steps))


def some_prompts(domain: str, count: int, skip: int = 0) -> list[Tokens]:
    """Return prompts that ship with osd, as the target reads them."""
    tokenizer = load_tokenizer(TARGET)
    return [encode(tokenizer, text) for text in shipped(domain, skip + count)[skip:]]


until = partial(waiting.until, seconds=600.0, pause=0.3)


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
