"""What happens to a call: where it goes, what of it, and what when a replica fails."""

from __future__ import annotations

import json
import signal
import threading
from contextlib import ExitStack
from pathlib import Path

import httpx
import openai
import pytest

from osd.demo import DRAFT
from storage.records import Route
from tests.osd.server.conftest import Server
from tests.osd.server.upstream.conftest import Fronted, front, fronted
from tests.support.fake_replica import (
    DONE,
    USAGE,
    Answer,
    babble,
    chunk,
    hang_up,
    held,
    replica,
    say,
    stream,
    wait_for_ever,
)
from tests.support.waiting import PATIENCE, until

TEXT = "/v1/completions"
HELLO = {"prompt": "Hello", "max_tokens": 4}
STREAM = HELLO | {"stream": True}


def counted(server: Server, name: str) -> float:
    """The sum of a counter over its labels."""
    lines = [line for line in server.get("/metrics").text.splitlines() if line.startswith(name)]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def last_error(text: str) -> str:
    """The code of the error that ends a stream, or is the whole answer."""
    return str(json.loads(text.strip().split("\n\n")[-1].removeprefix("data: "))["error"]["code"])


def test_a_stream_passes_byte_for_byte(one: Fronted) -> None:
    one.replicas[0].answer = stream(5)
    before = counted(one.server, "osd_api_tokens_total")
    answer = one.server.post(TEXT, STREAM)
    assert answer.content == b"".join(map(chunk, range(5))) + DONE
    assert one.replicas[0].asked[0].json == STREAM and answer.headers["content-type"] == "text/event-stream"
    with_usage = STREAM | {"stream_options": {"include_usage": True}}
    assert one.server.post(TEXT, with_usage).content == b"".join(map(chunk, range(5))) + USAGE + DONE
    assert counted(one.server, "osd_api_tokens_total") == before + 9


def test_the_first_event_does_not_wait_for_the_second(one: Fronted) -> None:
    one.replicas[0].answer = stream(2, pause=3600)
    with httpx.stream("POST", one.server.url + TEXT, json=STREAM, timeout=PATIENCE) as answer:
        assert next(answer.iter_raw()) == chunk(0)


@pytest.mark.parametrize("failing", [hang_up, babble, stream(0, breaks=True), say(503, {"error": {}})])
@pytest.mark.parametrize("streams", [False, True])
def test_what_fails_before_the_first_byte_is_asked_elsewhere(two: Fronted, failing: Answer, streams: bool) -> None:
    bad, good = two.replicas
    bad.answer, good.answer = failing, stream(3) if streams else good.answer
    before = counted(two.server, "osd_upstream_retries_total")
    answers = [two.server.post(TEXT, HELLO | {"stream": streams}) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200] * 4
    assert len(good.asked) == 4 and bad.asked, "the bad one was tried"
    assert counted(two.server, "osd_upstream_retries_total") > before


def test_a_replica_that_is_killed_gets_nothing_and_comes_back(two: Fronted) -> None:
    killed = two.replicas[0]
    killed.stop()
    assert [two.server.post(TEXT, HELLO).status_code for _ in range(6)] == [200] * 6
    two.until(killed, "down")
    killed.start()
    two.until(killed, "up")
    before = len(killed.asked)
    assert [two.server.post(TEXT, HELLO).status_code for _ in range(2)] == [200] * 2
    assert len(killed.asked) > before


def test_a_stream_that_breaks_off_ends_with_an_error_and_is_not_begun_again(two: Fronted) -> None:
    for fake in two.replicas:
        fake.answer = stream(3, breaks=True)
    answer = two.server.post(TEXT, STREAM)
    assert answer.content.startswith(b"".join(map(chunk, range(3)))) and DONE not in answer.content
    assert last_error(answer.text) == "replica_failed" and two.asked == 1
    with pytest.raises(openai.APIError, match="did not finish"):
        list(two.server.client().completions.create(model="target", prompt="a", stream=True))


def test_all_down_is_said_with_when_to_come_again(two: Fronted) -> None:
    assert two.server.get("/ready").status_code == 200
    for fake in two.replicas:
        fake.stop()
    answer = two.server.post(TEXT, HELLO)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_replica")
    assert int(answer.headers["retry-after"]) >= 1
    until(lambda: two.server.get("/ready").status_code == 503, "it says so")
    assert two.server.get("/health").status_code == 200 and two.server.get("/v1/models").status_code == 503


REFUSALS = {
    400: b'{"error": {"message": "too long", "code": 400}}', 404: b'{"error":"x"}', 422: b"no",
    429: b'{"detail":"wait"}', 500: b'{"error": {"message": "engine"}}',
}  # fmt: skip


@pytest.mark.parametrize("status", REFUSALS)
def test_what_a_replica_refuses_is_passed_on_as_it_said_it(two: Fronted, status: int) -> None:
    for fake in two.replicas:
        fake.answer = say(status, REFUSALS[status], retry_after="7", x_thing="y", server="secret", set_cookie="a=b")
    answer = two.server.post(TEXT, STREAM)
    assert (answer.status_code, answer.content) == (status, REFUSALS[status])
    assert (answer.headers["retry-after"], answer.headers["x-thing"]) == ("7", "y")
    assert "server" not in answer.headers and "set-cookie" not in answer.headers
    assert two.asked == 1, "it was not asked elsewhere"


@pytest.mark.parametrize("failing", [babble, say(302, b"", location="http://127.0.0.1:1/"), say(401, {"error": "key"})])
def test_what_no_client_should_get(one: Fronted, failing: Answer) -> None:
    one.replicas[0].answer = failing
    answer = one.server.post(TEXT, HELLO)
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "replica_failed")
    assert "location" not in answer.headers and "www-authenticate" not in answer.headers


@pytest.mark.parametrize("answering", [stream(10_000, pause=0.01), wait_for_ever])
def test_a_client_that_goes_away_ends_the_replicas_work(one: Fronted, answering: Answer) -> None:
    one.replicas[0].answer = answering
    client = httpx.Client(timeout=0.5)
    with client, pytest.raises(httpx.ReadTimeout), client.stream("POST", one.server.url + TEXT, json=STREAM) as answer:
        for _ in zip(range(3), answer.iter_raw(), strict=False):
            pass
        raise httpx.ReadTimeout("enough")
    until(lambda: one.asked and one.replicas[0].asked[0].gone.is_set(), "the replica's connection is closed")
    until(lambda: one.server.snapshot()["osd_requests_running"] == 0, "nothing runs")


@pytest.mark.parametrize("streams", [False, True])
def test_a_deadline_ends_it(one: Fronted, streams: bool) -> None:
    one.replicas[0].answer = stream(10_000, pause=0.01) if streams else wait_for_ever
    answer = one.server.post(TEXT, STREAM, headers={"X-OSD-Deadline-Ms": "500"})
    assert last_error(answer.text) == "deadline_exceeded" and answer.status_code == (200 if streams else 408)
    assert one.replicas[0].asked[0].gone.wait(PATIENCE), "the replica is told"


def test_the_least_loaded_replica_is_asked(two: Fronted) -> None:
    gate = threading.Event()
    for fake in two.replicas:
        fake.answer = held(gate, stream(2))
    waiting = [threading.Thread(target=two.server.post, args=(TEXT, STREAM)) for _ in range(6)]
    for thread in waiting:
        thread.start()
    until(lambda: two.asked == 6, "all were passed on")
    assert [len(fake.asked) for fake in two.replicas] == [3, 3]
    gate.set()
    for thread in waiting:
        thread.join()


def test_a_slow_replica_keeps_its_request_and_gets_no_more(two: Fronted) -> None:
    slow, quick = two.replicas
    gate = threading.Event()
    slow.answer, quick.answer = held(gate, stream(2)), stream(2)
    found: list[bytes] = []
    asking = [threading.Thread(target=lambda: found.append(two.server.post(TEXT, STREAM).content)) for _ in range(2)]
    for thread in asking:
        thread.start()
    until(lambda: slow.asked and quick.asked, "each has one")
    assert [two.server.post(TEXT, STREAM).status_code for _ in range(3)] == [200] * 3
    gate.set()
    for thread in asking:
        thread.join()
    assert found == [chunk(0) + chunk(1) + DONE] * 2 and len(slow.asked) == 1


def test_routes_have_replicas_and_the_default_draft_stands_in(tmp_path: Path) -> None:
    with ExitStack() as stack:
        plain, sql = (stack.enter_context(replica()) for _ in range(2))
        server = stack.enter_context(front(tmp_path, plain.url, f"sql={sql.url}"))
        with server.store() as store:
            for draft in ("default", "sql"):
                store.versions.register_root(draft, DRAFT, target="t")
            store.routes.add(Route("queries", "sql", matches={"pattern": "SELECT"}))
        asked = {"prompt": "SELECT name", "max_tokens": 1}
        until(lambda: server.post(TEXT, asked).headers["x-osd-route"] == "queries", "the route is known")
        before = len(plain.asked), len(sql.asked)
        bodies = [asked, HELLO, HELLO | {"osd": {"route": "queries"}}]
        answers = [server.post(TEXT, body) for body in bodies]
        assert [answer.headers["x-osd-route"] for answer in answers] == ["queries", "default", "queries"]
        assert (len(plain.asked), len(sql.asked)) == (before[0] + 1, before[1] + 2)
        assert [one.headers["x-osd-route"] for one in sql.asked[-2:]] == ["queries"] * 2
        assert all("x-osd-stand-in" not in answer.headers for answer in answers)
        unknown = server.post(TEXT, HELLO, headers={"X-OSD-Route": "none"})
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (400, "unknown_route")
        sql.stop()
        answer = server.post(TEXT, asked)
        assert (answer.status_code, answer.headers["x-osd-stand-in"]) == (200, "default")
        assert 'osd_upstream_stood_in_requests_total{route="queries"} 1.0' in server.get("/metrics").text


def test_sigterm_lets_what_runs_end(tmp_path: Path) -> None:
    with fronted(tmp_path, 1) as one:
        one.replicas[0].answer = stream(12, pause=0.1)
        with httpx.stream("POST", one.server.url + TEXT, json=STREAM, timeout=PATIENCE) as answer:
            parts = answer.iter_raw()
            got = next(parts)
            one.server.process.send_signal(signal.SIGTERM)
            until(lambda: one.server.get("/ready").status_code == 503, "it drains")
            refused = one.server.post(TEXT, HELLO)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
            got += b"".join(parts)
        assert got == b"".join(map(chunk, range(12))) + DONE
        assert one.server.process.wait(PATIENCE) == 0


def test_what_takes_too_long_is_cut_off_at_the_end(tmp_path: Path) -> None:
    with fronted(tmp_path, 1, OSD_SERVER__DRAIN_SECONDS="0.2") as one:
        one.replicas[0].answer = stream(100_000, pause=0.01)
        with httpx.stream("POST", one.server.url + TEXT, json=STREAM, timeout=PATIENCE) as answer:
            parts = answer.iter_raw()
            got = next(parts)
            one.server.process.send_signal(signal.SIGTERM)
            got += b"".join(parts)
        assert last_error(got.decode()) == "stopped"
        assert one.server.process.wait(PATIENCE) == 0 and one.replicas[0].asked[0].gone.wait(PATIENCE)


def test_a_replica_is_drained_and_its_streams_end(two: Fronted) -> None:
    names = {fake.url.removeprefix("http://") for fake in two.replicas}
    listed = lambda: {one["id"] for one in two.server.get("/admin/servers").json()["servers"]}  # noqa: E731
    until(lambda: names <= listed(), "they are listed")
    for fake in two.replicas:
        fake.answer = stream(100_000, pause=0.01)
    with httpx.stream("POST", two.server.url + TEXT, json=STREAM, timeout=PATIENCE) as answer:
        parts = answer.iter_raw()
        next(parts)
        drained, other = sorted(two.replicas, key=lambda fake: -len(fake.asked))
        with two.server.store() as store:
            store.servers.ask_drain(drained.url.removeprefix("http://"))
        two.until(drained, "draining")
        other.answer = say(200, {"choices": []})
        assert [two.server.post(TEXT, HELLO).status_code for _ in range(3)] == [200] * 3
        assert next(parts), "what runs there goes on"
    assert (len(drained.asked), len(other.asked)) == (1, 3)
    with two.server.store() as store:
        store.servers.ask_drain(drained.url.removeprefix("http://"), undo=True)
    two.until(drained, "up")
    drained.ready = 503
    two.until(drained, "draining")


def test_one_that_serves_another_model_gets_nothing(two: Fronted) -> None:
    good, other = two.replicas
    other.model = "llama"
    two.until(other, "misfit")
    trouble = [row["trouble"] for row in two.server.get("/admin/upstream").json() if row["trouble"]]
    assert len(trouble) == 1 and trouble[0] in two.server.log
    assert all(word in trouble[0] for word in ("'llama'", "'target'", "--served-model-name target", other.url[7:]))
    assert [two.server.post(TEXT, HELLO).status_code for _ in range(4)] == [200] * 4
    assert len(other.asked) == 0 and len(good.asked) == 4


def test_one_that_is_not_well_gets_nothing(two: Fronted) -> None:
    sick = two.replicas[0]
    sick.health = 500
    two.until(sick, "down")
    assert "says 500 at /health" in two.server.log
    assert [two.server.post(TEXT, HELLO).status_code for _ in range(3)] == [200] * 3 and not sick.asked
