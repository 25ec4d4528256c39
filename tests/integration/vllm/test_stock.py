"""A real vLLM that has nothing of osd: harvested by a proxy, published to by starting it again, behind osd's front."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import openai
import pytest

from benchmarks.vllm.server import api_server, attach_process, cpu_variables, osd_command, random_draft, speculation
from osd.attached.vllm.plugin.osd_vllm.weights import weights_digest
from osd.bench.serve.process import running, wait_for
from osd.demo import DRAFT, TARGET
from osd.demo.runner.circle import own_settings
from osd.demo.runner.process import save_settings
from storage.settings import Settings
from storage.store import Store, open_store
from storage.versions.weights import copy_files, servable_files
from tests.integration.vllm.conftest import SECRETS, Home, acceptance, ask, free_port, ids_of, some_prompts, until
from tests.osd.server.conftest import Server
from tests.osd.server.upstream.conftest import front

pytestmark = pytest.mark.vllm
ASKED, MORE = 24, 16
HOOK = """
import json, os, signal, socket, subprocess, sys, time
from pathlib import Path
here = Path(__file__).parent
said = json.loads((here / "command.json").read_text())
config = json.dumps(said["speculation"] | {"model": sys.argv[1]})
if (here / "pid").exists():
    os.killpg(int((here / "pid").read_text()), signal.SIGKILL)
    while socket.socket().connect_ex(("127.0.0.1", said["port"])) == 0:
        time.sleep(0.1)
words = [*said["words"], "--port", str(said["port"]), "--speculative-config", config]
log = (here / "vllm.log").open("ab")
process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
(here / "pid").write_text(str(process.pid))
"""
"""What an operator has: starts vLLM with a draft, instead of the one that runs."""
QUIET = cpu_variables() | {"VLLM_CPU_KVCACHE_SPACE": "1", "OSD_VLLM_SPOOL": "", "OSD_VLLM_SHOW_METRICS": "1"}


@dataclass(frozen=True)
class Stock:
    """A vLLM that was started by the hook, and what stands around it."""

    url: str
    proxy: str
    folder: Path
    home: Home

    @property
    def store(self) -> Store:
        """Where what it answers is kept."""
        return self.home.store


@pytest.fixture(scope="module")
def stock(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stock]:
    """The vLLM with a draft of random weights, its proxy, and `osd attach`."""
    folder, port = tmp_path_factory.mktemp("stock"), free_port()
    url, draft = f"http://127.0.0.1:{port}", random_draft(DRAFT, folder / "draft")
    speculates = json.loads(speculation(draft)[1])
    words = [*api_server(python, TARGET), "--per-request-spec-decode-metrics", "detailed"]
    (folder / "command.json").write_text(json.dumps({"words": words, "port": port, "speculation": speculates}))
    (folder / "hook.py").write_text(HOOK)
    attach = {"port": free_port(), "restart": f"{sys.executable} {folder / 'hook.py'}", "poll_seconds": 0.5}
    settings = own_settings(Settings(), folder / "data", attach=attach)
    config = save_settings(settings, folder / "osd.toml")
    with ExitStack() as stack:
        stack.callback(_end, folder)
        subprocess.run([sys.executable, folder / "hook.py", draft], check=True, env=os.environ | QUIET)
        store = stack.enter_context(open_store(settings))
        until(lambda: _answers(url))
        stack.enter_context(attach_process(config, folder / "attach.log", SECRETS | QUIET))
        before = osd_command(config, "attach", "--proxy", url, "--port", "0")
        log = folder / "proxy.log"
        process = stack.enter_context(running(before, log, SECRETS | QUIET))
        said = wait_for("the proxy", process, log, lambda: _proxy_in(log))
        yield Stock(url, said, folder, Home(store, config, settings))


def test_it_learns_through_a_proxy_and_by_being_started_again(stock: Stock) -> None:
    draft = stock.folder / "draft"
    done = stock.home.osd(
        "engines", "add", stock.url, "--kind", "vllm-proxied", "--draft-folder", draft, "--draft", "sql"
    )
    assert done.returncode == 0, done.stderr
    versions, outcomes = stock.store.versions, stock.store.outcomes
    until(lambda: versions.serving("sql"))
    prompts = some_prompts("sql", ASKED + MORE)
    before = ask(stock.proxy, prompts[:ASKED])
    assert ids_of(ask(stock.url, prompts[:ASKED])) == ids_of(before)
    until(lambda: len(outcomes.recent(limit=1000)) == ASKED)
    good = versions.stage("sql", versions.current("sql").id, "full", _trained)
    versions.promote(good.id)
    until(lambda: set(versions.serving("sql").values()) == {good.id})
    after = ask(stock.proxy, prompts)
    assert ids_of(after[:ASKED]) == ids_of(before)
    assert acceptance(before) < 0.05 < 0.2 < acceptance(after)
    until(lambda: len(outcomes.recent(limit=1000)) == 2 * ASKED + MORE)
    learned = {one.draft_version for one in outcomes.recent(limit=1000)}
    assert good.id in learned and len(learned) == 2
    ids = [one.request_id for one in outcomes.recent(limit=1000)]
    assert len(stock.store.samples.read(ids)) >= ASKED
    assert stock.store.samples.waiting("sql").requests


def test_a_command_that_fails_is_told_and_not_tried_again(stock: Stock) -> None:
    hook = (stock.folder / "hook.py").read_text()
    (stock.folder / "hook.py").write_text("raise SystemExit('no such unit')")
    versions = stock.store.versions
    serving = dict(versions.serving("sql"))
    versions.promote(versions.stage("sql", versions.current("sql").id, "full", _trained).id)
    until(lambda: "no such unit" in stock.home.osd("servers", "list").stdout)
    assert versions.serving("sql") == serving and _answers(stock.url)
    (stock.folder / "hook.py").write_text(hook)


@pytest.fixture(scope="module")
def server(stock: Stock, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """osd's front before that vLLM."""
    with front(tmp_path_factory.mktemp("front"), stock.url) as made:
        yield made


def test_behind_the_front_everything_of_vllm_is_there(stock: Stock, server: Server) -> None:
    vllm = openai.OpenAI(base_url=f"{stock.url}/v1", api_key="none", max_retries=0, timeout=600)
    served = vllm.models.list().data[0].id
    client, prompt = server.client(), "How many singers are from France?"
    model = client.models.list().data[0].id
    one = client.completions.create(model=model, prompt=prompt, max_tokens=24, temperature=0, logprobs=3)
    own = vllm.completions.create(model=served, prompt=prompt, max_tokens=24, temperature=0, logprobs=3)
    assert one.choices[0].text == own.choices[0].text and one.usage == own.usage
    assert one.choices[0].logprobs == own.choices[0].logprobs
    parts = client.completions.create(
        model=model, prompt=prompt, max_tokens=24, temperature=0, stream=True, stream_options={"include_usage": True},
        extra_body={"return_token_ids": True},
    )  # fmt: skip
    chunks = list(parts)
    assert "".join(part.choices[0].text for part in chunks if part.choices) == one.choices[0].text
    assert chunks[-1].usage == own.usage
    ids = [token for part in chunks for choice in part.choices for token in (choice.token_ids or [])]  # type: ignore[attr-defined]
    extra = {"return_token_ids": True, "prompt_logprobs": 2, "min_tokens": 8, "top_k": 5}
    body = {"prompt": prompt, "max_tokens": 24, "temperature": 0, **extra}
    through = server.post("/v1/completions", {"model": model, **body}).json()["choices"][0]
    direct = httpx.post(f"{stock.url}/v1/completions", json={"model": served, **body}, timeout=600).json()["choices"][0]
    assert through == direct and through["token_ids"][: len(ids)] == ids
    refused = server.post("/v1/completions", {"model": model, "prompt": prompt, "max_tokens": -1})
    assert refused.status_code == 400 and "max_tokens" in refused.text


def _trained(folder: Path) -> None:
    copy_files(DRAFT, servable_files(DRAFT), folder)
    assert weights_digest(folder)


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def _proxy_in(log: Path) -> str | None:
    for line in log.read_text(errors="replace").splitlines():
        if line.startswith("Passing http"):
            return line.split()[1]
    return None


def _end(folder: Path) -> None:
    with suppress(OSError, ValueError):
        os.killpg(int((folder / "pid").read_text()), signal.SIGKILL)
