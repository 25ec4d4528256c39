"""Engines that are not what they should be: each is refused with a sentence that says what to do."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from osd.attached.base import EngineError, EngineUnsuited
from osd.attached.trials import require_live, selftest
from osd.attached.vllm.engine import VllmEngine
from tests.osd.attached.conftest import Running
from tests.support.fake_vllm import TOKEN, FakeEngine, make_app
from tests.support.vllm_sources import fake_vllm_module, write_sources


def refusal(url: str, asks: Callable[[VllmEngine], object] = VllmEngine.probe, token: str = TOKEN) -> str:
    """The sentence with which an engine is refused."""
    with pytest.raises(EngineError) as refused:
        asks(VllmEngine(url, token))
    return str(refused.value)


def _without_worker(fake: FakeEngine) -> None:
    async def no_such_method(method: str, args: tuple[Any, ...] = ()) -> list[Any]:
        raise AttributeError(f"'Worker' object has no attribute '{method}'")

    fake.collective_rpc = no_such_method  # type: ignore[method-assign]


LACKS: list[tuple[Callable[[FakeEngine], None], str]] = [
    (lambda fake: setattr(fake.target, "name_or_path", "nobody/has-this"), "the target cannot be told; start it"),
    (
        lambda fake: setattr(fake.vllm_config, "observability_config", SimpleNamespace()),
        "--per-request-spec-decode-metrics detailed",
    ),
    (lambda fake: setattr(fake.vllm_config.model_config, "logprobs_mode", "processed_logprobs"), "raw_logprobs"),
    (lambda fake: setattr(fake.vllm_config.speculative_config, "method", "ngram"), "ngram"),
    (_without_worker, "--worker-extension-cls osd_vllm.worker.OsdWorker"),
]
"""What a vLLM may lack, each beside what it lacked before it, and what is said of it first."""


def test_what_a_vllm_lacks_is_said_with_the_flag_that_mends_it(fake: FakeEngine) -> None:
    for change, says in LACKS:
        change(fake)
        running = Running(make_app(fake))
        assert says in refusal(running.url)
        running.stop()


def test_a_vllm_without_the_middleware_or_the_plugin_or_with_another_token_is_told(
    fake: FakeEngine, tmp_path: Path
) -> None:
    running = Running(make_app(fake, harvests=False))
    assert "--middleware osd_vllm.harvest.Harvest" in refusal(running.url)
    assert "OSD_VLLM_TOKEN" in refusal(running.url, token="another token")
    for folder, says in {"/etc": "OSD_VLLM_FOLDERS", str(tmp_path / "nowhere"): "sees no folder"}.items():
        assert says in refusal(running.url, lambda client, folder=folder: client.publish(Path(folder), "0" * 64, "v"))
    fake.vllm_config.speculative_config.model = "/etc"  # what vLLM was started with may be loaded again
    again = refusal(running.url, lambda client: client.publish(Path("/etc"), "0" * 64, "v"))
    assert "holds no .safetensors" in again
    running.stop()
    bare = Running(FastAPI())
    assert "osd-llm-vllm" in refusal(bare.url)
    bare.stop()
    assert "does not answer" in refusal(bare.url)


def test_lengths_are_not_changed_live_where_the_scheduler_is_another(
    fake: FakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OSD_VLLM_GAMMA", str(tmp_path / "gamma"))
    running = Running(make_app(fake, scheduler="osd_vllm.scheduler.OsdScheduler"))
    client = VllmEngine(running.url, TOKEN)
    assert client.probe().live_gamma
    client.set_gamma([(1, 16, 2)])
    other = write_sources(tmp_path / "other", "dynamic_sd_lookup")
    monkeypatch.setitem(sys.modules, "vllm", fake_vllm_module("0.40.0", other))
    said = refusal(running.url, lambda client: client.set_gamma([(1, 16, 2)]))
    assert "0.40.0" in said and "dynamic_sd_lookup" in said
    with pytest.raises(EngineUnsuited, match="OSD_VLLM_GAMMA"):
        require_live(client.name, client.probe())
    running.stop()


GARBAGE: list[Callable[[], Response]] = [
    lambda: JSONResponse([]), lambda: JSONResponse({}), lambda: JSONResponse({"speculation": 3}),
    lambda: JSONResponse(7), lambda: PlainTextResponse("<html>"), lambda: Response(b"\xff\xfe"),
    lambda: JSONResponse({"detail": [1]}, 500), lambda: JSONResponse(None, 422), lambda: Response(b"", 204),
]  # fmt: skip
ASKED: list[Callable[[VllmEngine], object]] = [
    VllmEngine.probe, VllmEngine.served, lambda client: client.complete([3], 2), selftest,
]  # fmt: skip


def test_garbage_is_refused_whatever_is_asked() -> None:
    app, answers = FastAPI(), list(GARBAGE)

    @app.api_route("/{path:path}", methods=["GET", "POST", "PUT"])
    async def everything(path: str, http: Request) -> Response:
        return answers[0]()

    running = Running(app)
    while answers:
        for asks in ASKED:
            assert refusal(running.url, asks)
        answers.pop(0)
    running.stop()


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


def test_what_takes_an_engine_a_while_is_waited_for_and_what_it_only_says_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = FastAPI()

    @app.api_route("/{path:path}", methods=["GET", "POST"])
    def slow(path: str) -> Response:
        time.sleep(0.6)
        return JSONResponse({"choices": [{"token_ids": [5]}]})

    monkeypatch.setattr("osd.attached.base.PATIENCE", 0.2)
    running = Running(app)
    assert VllmEngine(running.url, TOKEN).complete([3], 1) == [5]
    assert "timed out" in refusal(running.url, VllmEngine.served)
    monkeypatch.setattr("osd.attached.base.WORK_PATIENCE", 0.2)
    assert "timed out" in refusal(running.url, lambda client: client.complete([3], 1))
    running.stop()
