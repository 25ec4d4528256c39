"""Whose word counts: keys, tenants, limits and consent are the front's; its secrets and replicas' administration are
nobody's."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest

from tests.osd.server.conftest import Server
from tests.osd.server.upstream.conftest import Fronted, fronted
from tests.support.fake_replica import DONE, FakeReplica, chunk, say, stream
from tests.support.waiting import PATIENCE, until

TEXT = "/v1/completions"
HELLO = {"prompt": "Hello", "max_tokens": 4}
STREAM = HELLO | {"stream": True}
SECRET = "replicas-own-key-123456"


@pytest.fixture(scope="module")
def keyed_front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fronted]:
    """A front with a key of its own, over one replica that wants another one."""
    variables = {"OSD_UPSTREAM__API_KEY": "env:REPLICA_KEY", "REPLICA_KEY": SECRET}
    with fronted(tmp_path_factory.mktemp("keyed"), 1, **variables) as made:
        made.server.key = make(made.server, "acme", scopes=["infer", "metrics", "admin"])
        yield made


@pytest.fixture
def fake(keyed_front: Fronted) -> FakeReplica:
    """Its replica, as it was in the beginning."""
    keyed_front.reset()
    return keyed_front.replicas[0]


@pytest.fixture
def keyed(keyed_front: Fronted, fake: FakeReplica) -> Server:
    """That front."""
    return keyed_front.server


def make(server: Server, tenant: str, **options: object) -> str:
    with server.store() as store:
        secret, _ = store.keys.create(tenant, **options)  # type: ignore[arg-type]
    known, unknown = {"authorization": f"Bearer {secret}"}, {"authorization": "Bearer nobody's"}

    def listed(headers: dict[str, str]) -> int:
        return httpx.get(f"{server.url}/v1/models", headers=headers).status_code

    # Until the front has read its first key, it is open to everyone: 200 alone says nothing yet.
    until(lambda: (listed(known), listed(unknown)) == (200, 401), "the key is known")
    return secret


def test_the_replica_is_told_tenant_route_and_id_by_the_front(keyed: Server, fake: FakeReplica) -> None:
    sent = {
        "X-OSD-Tenant": "somebody-else", "x-osd-token": "guessed", "X-Api-Key": "mine", "Cookie": "a=b",
        "X-Request-Id": "mine-1", "X-Forwarded-For": "1.2.3.4", "X-Thing": "passes", "X-OSD-Route": "default",
    }  # fmt: skip
    assert keyed.post(TEXT, HELLO, headers=sent).status_code == 200
    (asked,) = fake.asked
    told = {name: value for name, value in asked.headers.items() if name.startswith("x-")}
    assert told == {"x-osd-tenant": "acme", "x-osd-route": "default", "x-request-id": "mine-1", "x-thing": "passes"}
    assert asked.headers["authorization"] == f"Bearer {SECRET}" and "cookie" not in asked.headers
    assert keyed.key not in str(asked.headers) and SECRET not in keyed.log and keyed.key not in keyed.log


def test_without_a_key_nothing_is_passed_on(keyed: Server, fake: FakeReplica) -> None:
    for path in (TEXT, "/v1/embeddings", "/tokenize", "/rerank", "/v1/models"):
        answer = httpx.post(keyed.url + path, json=HELLO, timeout=PATIENCE)
        assert answer.status_code == 401, path
    assert fake.asked == []


ADMIN = (
    "/v1/osd/info", "/v1/osd/publish", "/v1/osd/gamma", "/collective_rpc", "/pause", "/resume", "/sleep", "/wake_up",
    "/server_info", "/reset_prefix_cache", "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/start_profile",
    "/update_weights", "/start_draft_weight_update", "/scale_elastic_ep", "/abort_requests", "/invocations", "/load",
    "/v1/models/../osd/info", "/v1/completions/../osd/publish", "/v1/models/..%2fosd%2finfo", "/v1/%6fsd/info",
    "//v1/osd/info", "/v1/completions/", "/tokenize/../pause", "/tokenize;/../pause",
    "/v1/completions%2f..%2fosd%2fpublish",
)  # fmt: skip


def test_replicas_administration_is_out_of_reach(keyed: Server, fake: FakeReplica) -> None:
    where = urlsplit(keyed.url)
    for path in ADMIN:
        for method in ("GET", "POST", "PUT", "DELETE"):
            line = http.client.HTTPConnection(str(where.hostname), where.port, timeout=PATIENCE)
            line.putrequest(method, path, skip_accept_encoding=True)  # as it is: other clients tidy paths up
            for name, value in (*keyed.headers.items(), ("Content-Type", "application/json"), ("Content-Length", "2")):
                line.putheader(name, value)
            line.endheaders(b"{}")
            assert line.getresponse().status in (307, 404, 405), (method, path)
            line.close()
    assert fake.asked == []


def test_what_vllm_offers_beyond_passes(keyed: Server, fake: FakeReplica) -> None:
    for path in ("/v1/embeddings", "/tokenize", "/detokenize", "/v1/score", "/v1/responses", "/v1/messages"):
        body = {"input": ["a"], "priority": 3, "some_new_field": {"x": 1.50}}
        assert keyed.post(path, json.dumps(body).encode()).status_code == 200, path
        assert fake.asked[-1].path == path and fake.asked[-1].body == json.dumps(body).encode()


def test_osds_own_fields_are_taken_out_for_a_vllm(keyed: Server, fake: FakeReplica) -> None:
    assert keyed.post(TEXT, HELLO | {"osd": {"route": "default", "learn": False, "language": "fi"}}).status_code == 200
    (asked,) = fake.asked
    assert asked.json == HELLO
    assert (asked.headers["x-osd-learn"], asked.headers["x-osd-language"]) == ("false", "fi")
    for field in ({"gamma": 2}, {"metrics": "summary"}):
        refused = keyed.post(TEXT, HELLO | {"osd": field})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "unsupported_parameter")
    refused = keyed.post(TEXT, HELLO | {"osd": {"rout": "default"}})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "osd.rout")


def test_who_does_not_consent_is_not_learned_from(keyed: Server, fake: FakeReplica) -> None:
    with keyed.store() as store:
        store.tenants.allow("shy", learn=False)
    own = {"authorization": f"Bearer {make(keyed, 'shy')}", "X-OSD-Learn": "true"}

    def told(**body: object) -> str | None:
        assert keyed.post(TEXT, HELLO | body, headers=own).status_code == 200
        return fake.asked[-1].headers.get("x-osd-learn")

    until(lambda: told() == "false", "the front knows it")
    fake.owner = "osd"
    until(
        lambda: (told(osd={"learn": True}), fake.asked[-1].json.get("osd"))[1] == {"learn": False},
        "in the body too",
    )
    told(osd=None)
    assert fake.asked[-1].json["osd"] == {"learn": False}


def test_tokens_a_minute_count_streams_whose_usage_the_client_did_not_ask_for(keyed: Server, fake: FakeReplica) -> None:
    fake.answer = stream(4)
    own = {"headers": {"authorization": f"Bearer {make(keyed, 'small', tokens_per_minute=20)}"}}
    answers = [keyed.post(TEXT, STREAM, **own) for _ in range(3)]  # 9 tokens each
    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert answers[0].content == b"".join(map(chunk, range(4))) + DONE, "without what the front asked for itself"
    assert keyed.post(TEXT, STREAM, **own).status_code == 429


def test_a_key_that_is_revoked_in_mid_stream_ends_the_stream(keyed: Server, fake: FakeReplica) -> None:
    fake.answer = stream(100_000, pause=0.01)
    with keyed.store() as store:
        secret, key = store.keys.create("acme")
    known = {"authorization": f"Bearer {secret}"}
    until(lambda: httpx.get(f"{keyed.url}/v1/models", headers=known).status_code == 200, "the key is known")
    with httpx.stream("POST", keyed.url + TEXT, json=STREAM, headers=known, timeout=PATIENCE) as answer:
        parts = answer.iter_text()
        got = next(parts)
        with keyed.store() as store:
            store.keys.revoke(key.id)
        got += "".join(parts)
    last = got.strip().split("\n\n")[-1].removeprefix("data: ")
    assert json.loads(last)["error"]["code"] == "invalid_api_key"
    assert fake.asked[0].gone.wait(PATIENCE), "the replica was told"


def test_a_replica_that_wants_another_key_is_told_of(keyed: Server, fake: FakeReplica) -> None:
    fake.answer = say(401, {"error": "key"})
    assert keyed.post(TEXT, HELLO).status_code == 502
    assert "upstream.api_key" in keyed.log
