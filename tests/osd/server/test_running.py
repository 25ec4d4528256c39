"""What a server does over time: rows freed, draining, back-pressure, keeping, watching."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path

import httpx
import openai
import pytest

from storage.records import Route
from storage.settings import load_settings
from storage.store import open_store
from tests.osd.server.conftest import Make, Server, serving
from tests.support.waiting import PATIENCE, until

LONG = {"prompt": "def add(a, b):", "max_tokens": 480, "ignore_eos": True, "temperature": 0}


def busy(server: Server, running: int, waiting: int = 0) -> None:
    """Wait until so many requests run and wait."""
    wanted = {"osd_requests_running": running, "osd_requests_waiting": waiting}
    until(lambda: server.snapshot().items() >= wanted.items(), f"{wanted}, but {server.snapshot()}")


def open_stream(server: Server, **fields: object) -> openai.Stream:
    """A long answer whose first token is there."""
    stream = server.client().completions.create(model=None, stream=True, extra_body={"ignore_eos": True}, **{
        "prompt": "def add(a, b):", "max_tokens": 1800, "temperature": 0, **fields
    })  # fmt: skip
    next(stream)
    return stream


def test_a_client_that_goes_away_frees_its_row(guarded: Server) -> None:
    stream = open_stream(guarded)
    busy(guarded, 1)
    stream.close()
    busy(guarded, 0)
    assert guarded.post("/v1/completions", LONG | {"max_tokens": 2}).status_code == 200


def test_a_client_that_waits_and_goes_away_leaves_the_line(guarded: Server) -> None:
    with open_stream(guarded):
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{guarded.url}/v1/completions", json=LONG, headers=guarded.headers, timeout=0.5)
        busy(guarded, 1, 0)
    busy(guarded, 0)


def test_too_many_are_told_to_come_again(guarded: Server, make: Make) -> None:
    secret, _ = make("own", tokens_per_minute=5)
    own = {"headers": {"authorization": f"Bearer {secret}"}}
    with open_stream(guarded) as stream:
        body = LONG | {"max_tokens": 2, "prompt": ["a"] * 8}
        late = [threading.Thread(target=guarded.post, args=("/v1/completions", body)) for _ in "12"]
        for thread in late:
            thread.start()
        busy(guarded, 1, 16)
        refused = guarded.post("/v1/completions", LONG, **own)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
        assert int(refused.headers["retry-after"]) >= 1
        stream.close()
    for thread in late:
        thread.join()
    busy(guarded, 0)
    assert [guarded.post("/v1/completions", LONG | {"max_tokens": 2}, **own).status_code for _ in "12"] == [200, 429]


@pytest.mark.parametrize("stream", [False, True])
def test_a_deadline_ends_what_runs(guarded: Server, stream: bool) -> None:
    body = LONG | {"max_tokens": 1900, "stream": stream, "osd": {"deadline_ms": 400}}
    answer = guarded.post("/v1/completions", body)
    if stream:
        *chunks, last = [line for line in answer.text.split("\n\n") if line]
        assert len(chunks) > 1 and json.loads(last.removeprefix("data: "))["error"]["code"] == "deadline_exceeded"
    else:
        assert (answer.status_code, answer.json()["error"]["code"]) == (408, "deadline_exceeded")
    busy(guarded, 0)


def test_a_deadline_ends_what_waits(guarded: Server) -> None:
    with open_stream(guarded):
        answer = guarded.post("/v1/completions", LONG, headers={"X-OSD-Deadline-Ms": "50"})
        assert answer.status_code == 408
    busy(guarded, 0)


def test_what_may_be_learned_from_is_kept_and_nothing_else(guarded: Server) -> None:
    def kept() -> int:
        with guarded.store() as store:
            return len(store.samples.recent(limit=10_000))

    def counted() -> int:
        with guarded.store() as store:
            return sum(row.requests for row in store.outcomes.acceptance())

    before, counted_before = kept(), counted()
    asked = {"prompt": "Name a planet.", "max_tokens": 4}
    for learn in ({"osd": {"learn": False}}, {}):
        assert guarded.post("/v1/completions", asked | learn).status_code == 200
    assert guarded.post("/v1/completions", asked, headers={"X-OSD-Learn": "false"}).status_code == 200
    until(lambda: kept() > before, "the one request is kept")
    until(lambda: counted() >= counted_before + 3, "all are counted")
    assert kept() == before + 1


def test_metrics_have_vllms_names_beside_ours(guarded: Server) -> None:
    guarded.post("/v1/completions", LONG | {"max_tokens": 8})
    until(lambda: "vllm:spec_decode_num_drafts_total" in guarded.get("/metrics").text, "it is counted")
    assert httpx.get(f"{guarded.admin_url}/metrics", headers=guarded.headers, timeout=PATIENCE).status_code == 200
    text = guarded.get("/metrics").text
    for name in (
        'vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="toy"}',
        'vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="toy"}',
        'osd_http_requests_total{path="/v1/completions",status="200"}', "osd_engine_steps_total",
        'vllm:time_to_first_token_seconds_count{engine="0",model_name="toy"}',
        'vllm:e2e_request_latency_seconds_count{engine="0",model_name="toy"}',
        "vllm:request_time_per_output_token_seconds_bucket", "osd_api_tokens_total", "osd_requests_running",
    ):  # fmt: skip
        assert name in text, name


def test_health_readiness_version_and_tokens(guarded: Server) -> None:
    for path, facts in {"/health": {"status": "ok"}, "/ready": {"status": "ready"}}.items():
        assert guarded.get(path).json() == facts
    assert set(guarded.get("/version").json()) == {"version"}
    found = guarded.post("/tokenize", {"prompt": "näin 🎈"}).json()
    assert found["count"] == len(found["tokens"]) and found["max_model_len"] == 2048
    assert guarded.post("/detokenize", {"tokens": found["tokens"]}).json() == {"prompt": "näin 🎈"}
    framed = guarded.post("/tokenize", {"messages": [{"role": "user", "content": "hi"}]}).json()["tokens"]
    assert guarded.post("/detokenize", {"tokens": framed}).json()["prompt"].endswith("<|assistant|>\n")


def test_admins_see_drafts_numbers_and_events(guarded: Server) -> None:
    guarded.post("/v1/completions", LONG | {"max_tokens": 8})
    (draft,) = guarded.get("/admin/drafts").json()
    assert draft["current"] and draft["state"] == "serving"
    (worker,) = guarded.get("/admin/servers").json()["serving"]
    assert worker["version"] == draft["id"]
    for name in ("acceptance?by=route,version", "positions", "rejections", "runs", "gain"):
        assert guarded.get(f"/admin/stats/{name}").status_code == 200, name
    with httpx.stream("GET", f"{guarded.admin_url}/admin/events", headers=guarded.headers, timeout=PATIENCE) as events:
        lines = iter(events.iter_lines())
        assert [next(lines), next(lines).partition(":")[0]] == ["event: snapshot", "data"]


def test_an_admin_promotes_and_the_trail_says_so(guarded: Server) -> None:
    (draft,) = guarded.get("/admin/drafts").json()
    admin = httpx.Client(base_url=f"{guarded.admin_url}/admin/drafts", headers=guarded.headers, timeout=PATIENCE)
    done = admin.post("/promote", json={"version": draft["id"]})
    assert done.json()["id"] == draft["id"]
    for path, body, status in [
        ("promote", {"version": "none"}, 404), ("rollback", {"draft": "none"}, 404), ("rollback", {}, 409),
        ("promote", {}, 400),
    ]:  # fmt: skip
        answer = admin.post(f"/{path}", json=body)
        assert answer.status_code == status and set(answer.json()["error"]) == {"message", "type", "param", "code"}
    admin.close()
    with guarded.store() as store:
        (line,) = store.trail.history(draft["id"])
    assert (line.action, line.origin) == ("drafts promote", "http 127.0.0.1") and line.who.startswith("key-")


def test_it_drains(tmp_path: Path) -> None:
    """One that lets in everybody who reaches it, by any name."""
    with serving(tmp_path, "--host", "0.0.0.0", "--no-keys") as server:
        by_name = httpx.get(server.url + "/v1/models", headers={"host": "any.example"}, timeout=PATIENCE)
        assert by_name.status_code == 200
        stream = open_stream(server, max_tokens=500)
        server.process.send_signal(signal.SIGTERM)
        until(lambda: httpx.get(server.url + "/ready", timeout=PATIENCE).status_code == 503, "it drains")
        refused = server.post("/v1/completions", LONG)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert "retry-after" in refused.headers
        assert list(stream)[-1].choices[0].finish_reason == "length", "what ran was finished"
        assert server.process.wait(PATIENCE) == 0, server.log
        with server.store() as store:
            assert len(store.samples.recent(limit=9)) == 1, "and kept"
        assert "Traceback" not in server.log


@pytest.mark.slow
def test_draining_has_an_end(tmp_path: Path) -> None:
    with serving(tmp_path, OSD_SERVER__DRAIN_SECONDS="0.2") as server:
        stream = open_stream(server)
        server.process.send_signal(signal.SIGINT)
        with pytest.raises(openai.APIError, match="stopped before"):
            list(stream)
        assert server.process.wait(PATIENCE) == 0, server.log


def test_a_second_signal_is_final(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        stream = open_stream(server)
        server.process.send_signal(signal.SIGINT)
        until(lambda: httpx.get(server.url + "/ready", timeout=PATIENCE).status_code == 503, "it drains")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE) == 128 + signal.SIGTERM, server.log
        stream.close()


def test_a_route_may_go_by_the_model_that_is_asked_for(tmp_path: Path) -> None:
    with open_store(load_settings(storage={"directory": tmp_path / "data"})) as store:
        store.routes.add(Route("named", "default", {"model": ["toy"]}))
    with serving(tmp_path, "--model-name", "toy") as server:
        for asked in ({}, {"model": "toy"}):
            said = server.post("/v1/completions", {"prompt": "Hello", "max_tokens": 2, **asked})
            assert said.headers["x-osd-route"] == "named", said.text
