"""Engines that are not what they should be: each is refused with a sentence that says what to do."""

from __future__ import annotations

import importlib
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from osd.attached.attach import Attachment
from osd.attached.base import EngineError, EngineUnsuited
from osd.attached.trials import require_live, selftest
from osd.attached.vllm.engine import VllmEngine
from storage.store import Store
from tests.osd.attached.test_attach import Running, ask, attach, collected, engine, settings
from tests.support.fake_vllm import TOKEN, FakeEngine, make_app
from tests.support.waiting import until

__all__ = ["collected", "engine", "settings"]


def refusal(url: str, of: Callable[[VllmEngine], object] = lambda client: client.probe()) -> str:
    """The sentence with which an engine is refused."""
    with pytest.raises(EngineError) as refused:
        of(VllmEngine(url, TOKEN))
    return str(refused.value)


def _without_worker(fake: FakeEngine) -> None:
    async def no_such_method(method: str, args: tuple[Any, ...] = ()) -> list[Any]:
        raise AttributeError(f"'Worker' object has no attribute '{method}'")

    fake.collective_rpc = no_such_method  # type: ignore[method-assign]


def _older(fake: FakeEngine) -> None:
    fake.vllm_config.observability_config = SimpleNamespace()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_without_worker, "--worker-extension-cls osd_vllm.worker.OsdWorker"),
        (_older, "--per-request-spec-decode-metrics detailed"),
        (lambda fake: setattr(fake.target, "name_or_path", "nobody/has-this"), "the target cannot be told; start it"),
    ],
    ids=["no extension", "an older vLLM", "no target"],
)
def test_what_a_vllm_lacks_is_said_with_the_flag_that_mends_it(
    fake: FakeEngine, change: Callable[[FakeEngine], None], says: str
) -> None:
    change(fake)
    running = Running(make_app(fake))
    assert says in refusal(running.url)
    running.stop()


def test_a_vllm_without_the_middleware_is_told(fake: FakeEngine) -> None:
    running = Running(make_app(fake, harvests=False))
    assert "--middleware osd_vllm.harvest.Harvest" in refusal(running.url)
    running.stop()


def test_lengths_are_not_changed_live_in_a_version_that_nobody_tried(
    fake: FakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("OSD_VLLM_GAMMA", str(tmp_path / "gamma"))
    for version, live in {"0.32.1": True, "0.33.0": False}.items():
        monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__=version))
        app = make_app(fake, scheduler="osd_vllm.scheduler.OsdScheduler")
        running = Running(app)
        client = VllmEngine(running.url, TOKEN)
        assert client.probe().live_gamma is live
        if live:
            client.set_gamma([(1, 16, 2)])
        else:
            assert "0.33.0" in refusal(running.url, lambda client: client.set_gamma([(1, 16, 2)]))
            with pytest.raises(EngineUnsuited, match="OSD_VLLM_GAMMA"):
                require_live(client.name, client.probe())
        running.stop()


class Garbage:
    """An HTTP server that answers everything with one thing."""

    def __init__(self, answer: Callable[[], Response]) -> None:
        app = FastAPI()

        @app.api_route("/{path:path}", methods=["GET", "POST", "PUT"])
        async def everything(path: str, http: Request) -> Response:
            return answer()

        self.running = Running(app)


@pytest.mark.parametrize(
    "answer",
    [
        lambda: JSONResponse([]), lambda: JSONResponse({}), lambda: JSONResponse({"speculation": 3}),
        lambda: JSONResponse(7), lambda: PlainTextResponse("<html>"), lambda: Response(b"\xff\xfe"),
        lambda: JSONResponse({"detail": [1]}, 500),
        lambda: JSONResponse(None, 422), lambda: Response(b"", 204),
    ],
)  # fmt: skip
def test_garbage_is_refused_whatever_is_asked(answer: Callable[[], Response]) -> None:
    server = Garbage(answer)
    asked: list[Callable[[VllmEngine], object]] = [
        lambda client: client.probe(), lambda client: client.served(), lambda client: client.complete([3], 2),
        lambda client: selftest(client),
    ]  # fmt: skip
    for of in asked:
        assert refusal(server.running.url, of)
    server.running.stop()


@pytest.fixture
def silent() -> Iterator[str]:
    """A port behind which somebody speaks no HTTP."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def speak() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                client.sendall(b"220 mail\r\n")
                client.close()

        threading.Thread(target=speak, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


def test_a_port_that_speaks_no_http_is_refused(silent: str) -> None:
    assert "does not answer" in refusal(silent)


def test_an_engine_that_turns_to_garbage_is_not_attended_to_and_says_why(
    store: Store, engine: Running, fake: FakeEngine, collected: tuple[Attachment, Running], folders: dict[str, Any]
) -> None:
    root = attach(store, engine, folders)
    collected[0].start()
    until(lambda: store.versions.serving("sql") == {"gpu-1": root})
    worker = fake.worker
    fake.worker = SimpleNamespace(osd_draft_info=lambda: {"rank": "?"})
    until(lambda: store.workers.list() and "--worker-extension-cls" in (store.workers.list()[0].trouble or ""))
    fake.worker = worker
    until(lambda: not store.workers.list()[0].trouble)


def test_a_key_that_is_revoked_in_mid_stream_still_tells_whose_the_answer_is(
    store: Store, engine: Running, collected: tuple[Attachment, Running], folders: dict[str, Any]
) -> None:
    """vLLM looks at keys when a request comes, and lets its stream end; so the answer has its owner's permissions."""
    attach(store, engine, folders)
    collected[0].start()
    until(lambda: "gpu-1" in collected[0].followers)
    secret, key = store.keys.create("acme")
    store.keys.revoke(key.id)
    ask(engine, [5, 6], secret)
    until(lambda: store.outcomes.recent())
    assert store.outcomes.recent()[0].tenant == "acme"
    store.tenants.allow("acme", learn=False)
    ask(engine, [7, 8], secret)
    until(lambda: len(store.outcomes.recent()) == 2)
    assert sum(row.requests for row in store.samples.stats()) == 1


def test_a_wrong_token_keeps_answers_out_and_the_plugin_says_so(
    fake: FakeEngine, engine: Running, collected: tuple[Attachment, Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = importlib.import_module("osd_vllm.sender").sender()
    monkeypatch.setattr(sender, "options", SimpleNamespace(**{
        name: getattr(sender.options, name) for name in sender.options.__slots__
    } | {"token": "another token of a test"}))  # fmt: skip
    ask(engine, [5, 6])
    until(lambda: sender.counts["failures"])
    assert sender.counts["sent"] == 0
