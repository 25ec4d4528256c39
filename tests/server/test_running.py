"""What a server does over time: rows freed, draining, back-pressure, keeping, watching."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from tests.server.conftest import PATIENCE, Server, serving, until

LONG = {"prompt": "def add(a, b):", "max_tokens": 480, "ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of one row, in whose line two may wait; it lets in everybody who reaches it."""
    limits = {"OSD_SERVE__MAX_BATCH": "1", "OSD_SERVER__QUEUE": "2", "OSD_STORAGE__FLUSH_SECONDS": "0.1"}
    everybody = "--host", "0.0.0.0", "--no-keys"
    with serving(tmp_path_factory.mktemp("small"), "--model-name", "toy", *everybody, **limits) as made:
        yield made


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


def test_a_word_lets_everybody_in(small: Server) -> None:
    url = f"{small.url}/v1/models"
    assert httpx.get(url, headers={"host": "any.example"}, timeout=PATIENCE).status_code == 200


def test_a_client_that_goes_away_frees_its_row(small: Server) -> None:
    stream = open_stream(small)
    busy(small, 1)
    stream.close()
    busy(small, 0)
    assert small.post("/v1/completions", LONG | {"max_tokens": 2}).status_code == 200


def test_a_client_that_waits_and_goes_away_leaves_the_line(small: Server) -> None:
    with open_stream(small):
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{small.url}/v1/completions", json=LONG, timeout=0.5)
        busy(small, 1, 0)
    busy(small, 0)


def test_too_many_are_told_to_come_again(small: Server) -> None:
    with open_stream(small) as stream:
        late = [threading.Thread(target=small.post, args=("/v1/completions", LONG | {"max_tokens": 2})) for _ in "12"]
        for thread in late:
            thread.start()
        busy(small, 1, 2)
        refused = small.post("/v1/completions", LONG)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
        assert int(refused.headers["retry-after"]) >= 1
        stream.close()
    for thread in late:
        thread.join()
    busy(small, 0)


@pytest.mark.parametrize("stream", [False, True])
def test_a_deadline_ends_what_runs(small: Server, stream: bool) -> None:
    body = LONG | {"max_tokens": 1900, "stream": stream, "osd": {"deadline_ms": 400}}
    answer = small.post("/v1/completions", body)
    if stream:
        *chunks, last = [line for line in answer.text.split("\n\n") if line]
        assert len(chunks) > 1 and json.loads(last.removeprefix("data: "))["error"]["code"] == "deadline_exceeded"
    else:
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
    busy(small, 0)


def test_a_deadline_ends_what_waits(small: Server) -> None:
    with open_stream(small):
        answer = small.post("/v1/completions", LONG, headers={"X-OSD-Deadline-Ms": "50"})
        assert answer.status_code == 504
    busy(small, 0)


def test_what_may_be_learned_from_is_kept_and_nothing_else(small: Server) -> None:
    def kept() -> int:
        with small.store() as store:
            return len(store.samples.recent(limit=10_000))

    before = kept()
    asked = {"prompt": "Name a planet.", "max_tokens": 4}
    for learn in ({"osd": {"learn": False}}, {}):
        assert small.post("/v1/completions", asked | learn).status_code == 200
    assert small.post("/v1/completions", asked, headers={"X-OSD-Learn": "false"}).status_code == 200
    until(lambda: kept() > before, "the one request is kept")
    with small.store() as store:
        until(lambda: sum(row.requests for row in store.outcomes.acceptance()) >= before + 3, "all are counted")
    assert kept() == before + 1


def test_metrics_have_vllms_names_beside_ours(small: Server) -> None:
    small.post("/v1/completions", LONG | {"max_tokens": 8})
    for url in (small.url, small.admin_url):
        until(lambda url=url: "vllm:spec_decode_num_drafts_total" in httpx.get(f"{url}/metrics").text, "counted")
    text = httpx.get(f"{small.url}/metrics", timeout=PATIENCE).text
    for name in (
        'vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="toy"}',
        'vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="toy"}',
        'osd_http_requests_total{path="/v1/completions",status="200"}', "osd_engine_steps_total",
        "osd_time_to_first_token_seconds_bucket", "osd_api_tokens_total", "osd_requests_running",
    ):  # fmt: skip
        assert name in text, name


def test_health_readiness_version_and_tokens(small: Server) -> None:
    for path, facts in {"/health": {"status": "ok"}, "/ready": {"status": "ready"}}.items():
        assert httpx.get(small.url + path, timeout=PATIENCE).json() == facts
    assert set(httpx.get(small.url + "/version", timeout=PATIENCE).json()) == {"version"}
    found = small.post("/tokenize", {"prompt": "näin 🎈"}).json()
    assert found["count"] == len(found["tokens"]) and found["max_model_len"] == 2048
    assert small.post("/detokenize", {"tokens": found["tokens"]}).json() == {"prompt": "näin 🎈"}
    framed = small.post("/tokenize", {"messages": [{"role": "user", "content": "hi"}]}).json()["tokens"]
    assert small.post("/detokenize", {"tokens": framed}).json()["prompt"].endswith("<|assistant|>\n")


def test_admins_see_drafts_numbers_and_events(small: Server) -> None:
    small.post("/v1/completions", LONG | {"max_tokens": 8})
    (draft,) = httpx.get(f"{small.admin_url}/admin/drafts", timeout=PATIENCE).json()
    assert draft["current"] and draft["state"] == "serving"
    (worker,) = httpx.get(f"{small.admin_url}/admin/workers", timeout=PATIENCE).json()["serving"]
    assert worker["version"] == draft["id"]
    for name in ("acceptance?by=route,version", "positions", "rejections", "runs", "cost"):
        assert httpx.get(f"{small.admin_url}/admin/stats/{name}", timeout=PATIENCE).status_code == 200, name
    with httpx.stream("GET", f"{small.admin_url}/admin/events", timeout=PATIENCE) as events:
        lines = iter(events.iter_lines())
        assert [next(lines), next(lines).partition(":")[0]] == ["event: snapshot", "data"]


def test_an_admin_promotes_and_the_trail_says_so(small: Server) -> None:
    (draft,) = httpx.get(f"{small.admin_url}/admin/drafts", timeout=PATIENCE).json()
    done = httpx.post(f"{small.admin_url}/admin/drafts/promote", json={"version": draft["id"]}, timeout=PATIENCE)
    assert done.json()["id"] == draft["id"]
    for path, body, status in [
        ("promote", {"version": "none"}, 404), ("rollback", {"draft": "none"}, 404), ("rollback", {}, 409),
        ("promote", {}, 400),
    ]:  # fmt: skip
        answer = httpx.post(f"{small.admin_url}/admin/drafts/{path}", json=body, timeout=PATIENCE)
        assert answer.status_code == status and set(answer.json()["error"]) == {"message", "type", "param", "code"}
    from storage import admin_log

    with small.store() as store, store.db.session(read_only=True) as session:
        assert [change.action for change in admin_log.history(session, draft["id"])] == ["promote"]


def test_it_drains(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
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
