"""A stock vLLM behind the proxy: what is answered is learned from, and it is published to by starting it again."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from osd.attached import proxy as proxy_module
from osd.attached.attach import Attachment
from osd.attached.base import EngineUnsuited
from osd.attached.collector import make_collector
from osd.attached.intake import Intake
from osd.attached.proxy import HarvestProxy
from osd.attached.vllm import stock as stock_module
from osd.attached.vllm.plugin.osd_vllm import sender
from osd.attached.vllm.plugin.osd_vllm.options import Options
from osd.attached.vllm.plugin.osd_vllm.weights import weights_digest
from osd.attached.vllm.stock import RestartHook, SpeculatedAnswer, StockVllm, agreement
from osd.cli.engines import EngineOptions, client
from osd.models.model_digest import model_digest
from storage.records import Route, TokenKind, VersionState
from storage.settings import Settings
from storage.store import Store
from tests.osd.attached.conftest import Running, ask, better
from tests.support.fake_stock_vllm import HOOK, FakeStock
from tests.support.fake_vllm import TOKEN, FakeEngine
from tests.support.waiting import until


@pytest.fixture
def stock(fake: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> FakeStock:
    monkeypatch.setattr(stock_module, "ANSWERS", 3)
    monkeypatch.setattr(stock_module, "OUTPUT", 16)
    return FakeStock(fake)


@pytest.fixture
def vllm(stock: FakeStock) -> Iterator[Running]:
    running = Running(stock.app())
    yield running
    running.stop()


@dataclass
class Household:
    """A collector that attends to a stock vLLM, and the proxy before that."""

    attachment: Attachment
    proxy: Running
    sender: Any
    root: str


@pytest.fixture
def home(
    store: Store, settings: Settings, vllm: Running, folders: dict[str, Path], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Household]:  # fmt: skip
    monkeypatch.setattr(sender, "WAIT", 0.05)
    monkeypatch.setattr(proxy_module, "POLL_SECONDS", 0.05)
    (tmp_path / "hook.py").write_text(HOOK)
    hook = RestartHook(f"{sys.executable} {tmp_path / 'hook.py'}", 30.0)
    facts = StockVllm(vllm.url, None, None, str(folders["draft"]), None).probe()
    root = store.versions.register_root("sql", folders["draft"], target=facts.digest)
    store.routes.add(Route("sql", "sql"))
    store.engines.add(facts.name, vllm.url, "sql", {"kind": facts.kind})
    attachment = Attachment(
        store, settings, lambda settings, url, facts: StockVllm(url, None, None, str(folders["draft"]), hook)
    )
    collector = Running(make_collector(Intake(store, settings, attachment.followers), TOKEN, 1 << 20))
    before = HarvestProxy(vllm.url, Options(TOKEN, facts.name, collector.url, (), 20, 64, None, 0, "", False, None))
    proxy = Running(before)
    attachment.start()
    until(lambda: before.sender.serving == weights_digest(folders["draft"]))
    yield Household(attachment, proxy, before.sender, root.id)
    attachment.close()
    proxy.stop()
    collector.stop()


def test_what_passes_is_learned_from_and_clients_get_what_they_asked_for(
    store: Store, stock: FakeStock, vllm: Running, home: Household
) -> None:
    prompts = [[7 + n, 30, 41] for n in range(4)]
    answers = [ask(home.proxy, prompt) for prompt in prompts]
    assert answers == [ask(vllm, prompt) for prompt in prompts]
    until(lambda: sum(one.requests for one in store.samples.stats()) == 4)
    for samples in store.samples.read([one.request_id for one in store.outcomes.recent()]):
        prompt = tuple(samples.tokens[: samples.prompt_len].tolist())
        assert samples.draft_version == home.root and samples.route == "sql"
        assert samples.drafted[samples.kinds == TokenKind.REJECTED].tolist() == stock.engine.refused[prompt]
    assert home.sender.counts["failed"] == 0
    for path in ("/v1/models", "/version", "/nowhere?a=1&b=%20"):  # everything else passes as it is
        assert fetch(home.proxy.url + path) == fetch(vllm.url + path)
    wrong = {"prompt": [5], "max_tokens": 0}
    assert fetch(home.proxy.url + "/v1/completions", wrong) == fetch(vllm.url + "/v1/completions", wrong)
    stock.up = False
    assert fetch(home.proxy.url + "/v1/models")[0] == 503
    stock.up = True
    vllm.stop()
    status, said = fetch(home.proxy.url + "/v1/completions", {"prompt": [5], "max_tokens": 2})
    assert status == 502 and "does not answer" in json.loads(said)["error"]["message"]


def fetch(url: str, body: Any = None) -> tuple[int, bytes]:
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data)) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_a_newer_version_is_published_by_starting_vllm_again_and_anew_where_somebody_did(
    store: Store, stock: FakeStock, home: Household, folders: dict[str, Path]
) -> None:
    said = ask(home.proxy, [9, 9, 9])
    newer = better(store, folders, home.root)
    until(lambda: list(store.versions.serving("sql").values()) == [newer])
    assert [one["version"] for one in stock.restarts] == [newer]
    until(lambda: home.sender.serving == weights_digest(folders["better"]))
    assert ask(home.proxy, [9, 9, 9]) == said
    until(lambda: {one.draft_version for one in store.outcomes.recent()} == {home.root, newer})
    (engine,) = store.engines.list()
    assert engine.facts["ranks"][0]["version"] == newer
    stock.restart(folders["draft"])
    until(lambda: len(stock.restarts) == 2)
    until(lambda: home.sender.serving == weights_digest(folders["better"]))
    stock.restart(folders["better"])  # as a unit does that was told the newest folder
    time.sleep(0.5)
    assert len(stock.restarts) == 2 and list(store.versions.serving("sql").values()) == [newer]


def test_a_restart_that_fails_is_named_and_tried_once(
    store: Store, stock: FakeStock, home: Household, folders: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "hook.py").write_text(
        "import sys; open(sys.argv[1] + '.ran', 'a').write('x'); sys.exit('no GPU is free')"
    )
    newer = better(store, folders, home.root)
    until(lambda: "no GPU is free" in (store.servers.list()[0].trouble or ""))
    time.sleep(0.5)
    assert (store.versions.folder(store.versions.get(newer)).with_suffix(".ran")).read_text() == "x"
    assert store.versions.get(newer).state is VersionState.READY and not stock.restarts
    until(lambda: home.sender.serving == weights_digest(folders["draft"]))


def test_a_hook_that_starts_another_draft_is_found_out(vllm: Running, folders: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "hook.py").write_text(f"import sys\nsys.argv[1] = {str(folders['draft'])!r}\n{HOOK}")
    hook = RestartHook(f"{sys.executable} {tmp_path / 'hook.py'}", 30.0)
    engine = StockVllm(vllm.url, None, None, str(folders["draft"]), hook)
    engine.probe()
    with pytest.raises(EngineUnsuited, match="does not draft as"):
        engine.publish(folders["better"], weights_digest(folders["better"]), "v1")


def test_what_is_wrong_with_a_hook_is_said(vllm: Running, folders: dict[str, Path]) -> None:
    wrong = {
        "/nowhere/at/all": "cannot be run", "tail -f /dev/null": "had not ended", "true": "did not bring it up",
        None: "attach.restart",
    }  # fmt: skip
    for command, says in wrong.items():
        hook = RestartHook(command, 0.5) if command else None
        engine = StockVllm(vllm.url, None, None, str(folders["draft"]), hook)
        with pytest.raises(EngineUnsuited, match=says):
            engine.publish(folders["better"], weights_digest(folders["better"]), "v1")


def test_a_probe_says_what_is_missing(
    stock: FakeStock, vllm: Running, folders: dict[str, Path], tmp_path: Path
) -> None:
    found = StockVllm(vllm.url, None, None, str(folders["draft"]), None).probe()
    assert found.digest == model_digest(str(folders["target"])) and found.gamma == 3 and found.version == "0.32.0"
    assert found.serves == weights_digest(folders["draft"])
    for target, draft, says in [
        (None, None, "--draft-folder"),
        (str(tmp_path / "nowhere"), str(folders["draft"]), "--target"),
        (None, str(folders["better"]), "does not draft as"),
    ]:
        with pytest.raises(EngineUnsuited, match=says):
            StockVllm(vllm.url, None, target, draft, None).probe()


def test_a_probe_is_greedy_and_finds_out_log_probabilities_that_are_not_raw(
    stock: FakeStock, vllm: Running, folders: dict[str, Path]
) -> None:
    probed = StockVllm(vllm.url, None, None, str(folders["draft"]), None)
    probed.probe()
    assert stock.asked and {one["temperature"] for one in stock.asked} == {0}
    stock.engine.processed = True
    with pytest.raises(EngineUnsuited, match="raw_logprobs"):
        probed.probe()


def test_folders_are_made_absolute_where_they_are_given(
    folders: dict[str, Path], settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folders["root"])
    given = EngineOptions("vllm-proxied", "target", Path("draft"))
    engine: Any = client(settings, "http://127.0.0.1:9", given)
    assert (engine._target, engine._draft) == (str(folders["target"]), folders["draft"])
    (tmp_path / "hook.py").write_text("import sys; sys.exit(sys.argv[1])")
    with pytest.raises(EngineUnsuited, match=f"said: {folders['better']}"):
        RestartHook(f"{sys.executable} {tmp_path / 'hook.py'}", 30.0)("e", "http://e", Path("better"), "v1")


def test_a_client_that_leaves_takes_the_request_with_it() -> None:
    gone = threading.Event()

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await receive()
        while True:
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            if (await receive())["type"] == "http.disconnect":
                gone.set()
                return

    upstream = Running(endless)
    proxy = Running(HarvestProxy(upstream.url, Options(TOKEN, "gone", None, (), 20, 1, None, 0, "", False, None)))

    async def leave() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"x\r\n")
        writer.close()

    asyncio.run(leave())
    assert gone.wait(10)
    proxy.stop()
    upstream.stop()


def test_agreement_counts_steps_as_the_fake_drafts(fake: FakeEngine, folders: dict[str, Path]) -> None:
    answers = []
    for number in range(4):
        tokens, _, accepted, drafted = fake.decode([5 + number, 6], 20)
        answers.append(SpeculatedAnswer([5 + number, 6], tokens, accepted, drafted))
    assert agreement(folders["draft"], answers) == 1.0
    other = agreement(folders["better"], answers)
    assert other is not None and other < 0.9
    assert agreement(folders["draft"], []) is None
