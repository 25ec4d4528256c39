"""A browser watches a server learn: acceptance and versions without reloading, there and back, inside a request."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from osd.demo.prompts import prompts
from osd.demo.runner.circle import own_settings
from osd.demo.runner.process import save_settings, worker_beside
from storage.settings import load_settings
from tests.osd.server.conftest import Server, serving
from tests.support.browser import chromium
from tests.support.launch import start_quickly
from tests.support.waiting import until

VERSION = "Draft version here"
OPTIONS = {
    "OSD_STORAGE__FLUSH_SECONDS": "0.3", "OSD_STORAGE__FLUSH_REQUESTS": "8", "OSD_SERVE__SWAP_POLL_SECONDS": "0.1",
    "OSD_SERVER__KEYS_POLL_SECONDS": "0.1",
}  # fmt: skip


@contextmanager
def learning(server: Server, folder: Path) -> Iterator[None]:
    """A worker on the server's store, and prompts of one kind until the block ends."""
    config = save_settings(own_settings(load_settings(), server.data), folder / "worker.toml")
    over, asked = threading.Event(), prompts("sql", 4000)

    def ask(mine: list[str]) -> None:
        for prompt in mine:
            if over.is_set():
                return
            server.post("/v1/completions", {"prompt": prompt, "max_tokens": 48, "temperature": 0})

    with worker_beside(config, folder / "worker.log"):
        clients = [threading.Thread(target=ask, args=(asked[i::4],)) for i in range(4)]
        for client in clients:
            client.start()
        try:
            yield
        finally:
            over.set()
            for client in clients:
                client.join()


@pytest.mark.slow
def test_learning_is_visible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start_quickly("osd.demo.runner.process", monkeypatch)
    with chromium(tmp_path / "browser") as page, serving(tmp_path / "server", **OPTIONS) as server:
        page.open(f"{server.admin_url}/")
        until(lambda: "osd trainer" in page.text("#drafts"), "it says what to do when nothing was learned")
        with learning(server, tmp_path):
            until(lambda: page.number("Acceptance α"), "acceptance is there")
            assert page.tile(VERSION) == "#0"
            first = page.number("Acceptance α") or 1.0
            until(lambda: page.tile(VERSION) != "#0", "another version drafts")
            until(lambda: (page.number("Acceptance α") or 0.0) > first + 0.05, f"acceptance rises above {first}")
            until(lambda: page.all("#losses .scatterlayer .trace"), "losses are drawn")
            assert page.all("#timeline .scatterlayer .trace")
        there_and_back(page, server)
        inside(page)
        assert not page.reloaded and page.complaints() == []
        behind_a_key(page, server)


def there_and_back(page, server: Server) -> None:
    def current() -> str:
        return str(next(draft["id"] for draft in server.get("/admin/drafts").json() if draft["current"]))

    newest = current()
    shown = f"#{int(newest.split('-')[1])}"
    until(lambda: page.tile(VERSION) == shown and page.all(f'[data-key="back {newest}"]'), "the newest drafts")
    page.press(f'[data-key="back {newest}"]')
    page.confirm()
    until(lambda: page.tile(VERSION) != shown, "the server went back")
    assert current() != newest
    until(lambda: page.all(f'[data-key="promote {newest}"]'), "it can be promoted")
    page.press(f'[data-key="promote {newest}"]')
    page.confirm()
    until(lambda: page.tile(VERSION) == shown, "and forth")
    assert current() == newest


def inside(page) -> None:
    until(lambda: page.all("#inside-list button"), "requests are listed")
    page.press("#inside-list button:nth-child(3)")
    until(lambda: page.all('#inside-list button:nth-child(3)[aria-pressed="true"]'), "the third is chosen")
    until(lambda: page.all("#inside-one .accepted") and page.all("#inside-one .barlayer .trace"), "its text")
    assert len(page.text("#inside-one .text .prompt")) > 10


LATE = """
const usual = window.fetch
window.heardLate = 0
window.fetch = async (path, options) => {
  const answer = await usual(path, options)
  if (String(path).includes('/dashboard/') && !answer.ok) {
    await new Promise((done) => setTimeout(done, 3000))
    window.heardLate += 1
  }
  return answer
}
"""
"""Some are told only later that a key is needed."""


def behind_a_key(page, server: Server) -> None:
    page.driver.execute_script(LATE)
    with server.store() as store:
        plain, admin = (store.keys.create("own", scopes=[scope])[0] for scope in ("infer", "admin"))
    until(lambda: page.all("#sign-in:not([hidden])"), "it asks for a key")
    assert not page.text("#inside-one"), "no text stays behind"
    for key, outcome in ((plain, "#sign-in-error:not(:empty)"), (admin, "#link.live")):
        page.driver.execute_script("document.getElementById('key').value = arguments[0]", key)
        page.press("#key")
        until(lambda wanted=outcome: page.all(wanted), outcome)
        until(lambda: page.driver.execute_script("return window.heardLate"), "what was asked without a key is refused")
        assert page.all(outcome), "and changes nothing"
    assert page.all("#main:not([hidden])")
    until(lambda: "Texts are not shown" in page.text("#inside-empty"), "texts are gone")
    assert not page.text("#inside-one")
