"""What the middleware hands a client is, byte for byte, what it would have had without; what it keeps is all there."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.responses import Response
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st

from osd.attached.vllm.plugin.osd_vllm.exchange import Exchange
from osd.attached.vllm.plugin.osd_vllm.harvest import HarvestMiddleware
from tests.support.fake_vllm import FakeEngine, make_app


class KeptRecords:
    """A sender that keeps everything and sends nothing."""

    shows_metrics, tenant_header, serving, target = False, "x-tenant", "d" * 64, None

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.errors: list[Exception] = []
        self.incomplete = 0
        self.closed = False

    def depth(self) -> int:
        return 5

    def salt(self, version: str | None) -> str | None:
        return version

    def put(self, record: dict[str, Any]) -> None:
        self.records.append(record)

    def failed(self, error: Exception) -> None:
        self.errors.append(error)

    def skipped(self) -> None:
        self.incomplete += 1

    def timed(self) -> nullcontext[None]:
        return nullcontext()

    def close(self) -> None:
        self.closed = True


PATH = "/v1/completions"
ASKED = {"prompt": [5, 6], "max_tokens": 3}
BODIES = st.fixed_dictionaries(
    {"prompt": st.lists(st.integers(2, 90), min_size=1, max_size=6), "max_tokens": st.integers(0, 9)},
    optional={
        "n": st.integers(1, 3), "stream": st.booleans(), "return_token_ids": st.booleans(), "tools": st.just([{}]),
        "stream_options": st.fixed_dictionaries({"include_usage": st.booleans()}),
        "wants": st.integers(0, 7),
    },
)  # fmt: skip


def served(app: Any, path: str, body: Any, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    """What a client gets."""
    answer = TestClient(app).post(path, content=json.dumps(body), headers=headers or {})
    return answer.status_code, answer.content


def without_speculation(body: bytes) -> bytes:
    """An answer as a vLLM gives it that was not told to say how speculation went."""
    events = body.split(b"\n\n") if body.startswith(b"data:") else [body]
    return b"\n\n".join(map(_without, events))


def _without(event: bytes) -> bytes:
    prefix = b"data: " if event.startswith(b"data: {") else b""
    if not event.removeprefix(prefix).startswith(b"{"):
        return event
    said = json.loads(event.removeprefix(prefix))
    if said.get("metrics"):
        said["metrics"] = None
        if prefix:
            del said["metrics"]
    return prefix + json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode()


def test_the_sender_is_closed_when_the_server_ends(fake: FakeEngine) -> None:
    sender = KeptRecords()
    with TestClient(HarvestMiddleware(make_app(fake, harvests=False), sender)):
        assert not sender.closed
    assert sender.closed


@pytest.mark.parametrize("chat", [False, True])
def test_a_client_gets_what_it_would_have_had(fake: FakeEngine, chat: bool) -> None:
    plain = make_app(fake, harvests=False)
    sender = KeptRecords()
    harvested = HarvestMiddleware(plain, sender)
    path = "/v1/chat/completions" if chat else "/v1/completions"

    @settings(max_examples=25)
    @given(body=BODIES)
    def holds(body: dict[str, Any]) -> None:
        wants = body.pop("wants", None)
        if chat:
            body["messages"] = [{"role": "user", "content": str(body.pop("prompt"))}]
        if wants is not None:
            body |= {"logprobs": True, "top_logprobs": wants} if chat else {"logprobs": wants}
        expected = served(plain, path, body)
        before = len(sender.records)
        assert served(harvested, path, body) == (expected[0], without_speculation(expected[1]))
        assert not sender.errors and not sender.incomplete
        assert len(sender.records) == before + (expected[0] == 200)
        if expected[0] == 200:
            check(sender.records[-1], fake, body, asks=wants is not None)

    holds()


def check(record: dict[str, Any], fake: FakeEngine, body: dict[str, Any], *, asks: bool) -> None:
    """The record has the tokens of every choice, each position's likeliest tokens, and what each step accepted."""
    tokens, tops, accepted, drafted = fake.decode(record["prompt"], body["max_tokens"])
    assert [choice["tokens"] for choice in record["choices"]] == [tokens] * (body.get("n") or 1)
    if (body.get("n") or 1) == 1:
        assert (record["accepted"], record["drafted"]) == (accepted, drafted)
    for choice in record["choices"]:
        if asks:
            assert not choice["top_ids"]
        else:
            assert [set(ids) for ids in choice["top_ids"]] == [{i for i, _ in top[:5]} for top in tops]


@pytest.mark.parametrize(
    "body", [b"no json", b"[1]", b'{"prompt": ["a", "b"]}', b'{"prompt": [1], "echo": true}', b"\xff"]
)
def test_what_is_not_harvested_passes_untouched(fake: FakeEngine, body: bytes) -> None:
    seen: list[bytes] = []
    app = FastAPI()

    @app.middleware("http")
    async def note(request: Any, _: Any) -> Any:
        seen.append(await request.body())
        return Response(b"untouched")

    sender = KeptRecords()
    answer = TestClient(HarvestMiddleware(app, sender)).post("/v1/completions", content=body)
    assert answer.content == b"untouched" and seen == [body] and not sender.records


def test_a_record_names_the_tenant_and_never_a_key_and_there_is_none_for_who_wants_none(fake: FakeEngine) -> None:
    sender = KeptRecords()
    app = HarvestMiddleware(make_app(fake, harvests=False), sender)
    served(app, PATH, ASKED, {"X-OSD-Learn": "false"})
    assert not sender.records
    served(app, PATH, ASKED, {"Authorization": "Bearer osd-secret", "X-Tenant": "acme"})
    assert sender.records[0]["tenant"] == "acme" and "osd-secret" not in json.dumps(sender.records)
    assert len(sender.records[0]["key"]) == 64


def test_a_failing_sender_costs_no_answer(fake: FakeEngine) -> None:
    class Failing(KeptRecords):
        def put(self, record: dict[str, Any]) -> None:
            raise RuntimeError("no")

    sender = Failing()
    app = HarvestMiddleware(make_app(fake, harvests=False), sender)
    status, body = served(app, PATH, ASKED)
    assert status == 200 and json.loads(body)["choices"][0]["text"] and len(sender.errors) == 1


@pytest.mark.parametrize(
    ("given", "asked"),
    [({}, "d" * 16), ({"cache_salt": "mine"}, "d" * 16 + "mine"), ({"cache_salt": ""}, ""), ({"cache_salt": 7}, 7),
     ({"cache_salt": "s" * 128}, "s" * 128)],
)  # fmt: skip
def test_each_version_has_a_prefix_cache_of_its_own_and_what_vllm_refuses_it_refuses(
    given: dict[str, Any], asked: Any
) -> None:
    body = json.dumps({"prompt": [1], **given}).encode()
    exchange = Exchange.of_request("/v1/completions", body, 5, shows_metrics=False)
    assert exchange and json.loads(exchange.body_for_vllm(5, "d" * 64))["cache_salt"] == asked
    assert json.loads(exchange.body_for_vllm(5, None)).get("cache_salt") == given.get("cache_salt")


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_refused_for_our_sake_is_asked_again_as_the_client_asked(fake: FakeEngine, stream: bool) -> None:
    plain, seen = make_app(fake, harvests=False), []
    app = FastAPI()

    @app.middleware("http")
    async def strict(request: Any, _: Any) -> Any:
        seen.append(json.loads(await request.body()))
        if seen[-1].get("logprobs", 0) > 3:
            return Response(b"logprobs may be 3 at most", 400)
        status, body = served(plain, "/v1/completions", seen[-1])
        return Response(body, status, media_type="text/event-stream" if stream else "application/json")

    sender = KeptRecords()
    body = {"prompt": [5, 6], "max_tokens": 3, "stream": stream}
    harvested = served(HarvestMiddleware(app, sender), "/v1/completions", body)
    assert harvested == served(plain, "/v1/completions", body)
    assert [one.get("logprobs") for one in seen] == [5, None] and len(sender.errors) == 1 and not sender.records
    wrong = served(HarvestMiddleware(app, sender), "/v1/completions", {**body, "logprobs": 9})
    assert wrong == (400, b"logprobs may be 3 at most") and len(sender.errors) == 1
