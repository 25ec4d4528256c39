"""Who may call, for whom, how much; and what happens to those who may no longer."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import openai
import pytest
from typer.testing import CliRunner, Result

from osd.cli.main import app
from tests.osd.server.conftest import Make, Server, start
from tests.support.waiting import PATIENCE, until


def ask(server: Server, secret: str | None, **fields: object) -> httpx.Response:
    headers = {} if secret is None else {"authorization": f"Bearer {secret}"}
    body = {"prompt": "Hello", "max_tokens": 4, **fields}
    return httpx.post(f"{server.url}/v1/completions", json=body, headers=headers, timeout=PATIENCE)


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer osd-wrong", "Basic abc", "Bearer \xe9"])
def test_without_a_key_nobody_is_let_in(guarded: Server, header: str | None) -> None:
    headers = {} if header is None else {"authorization": header.encode("latin-1")}
    for path in ("/v1/models", "/v1/completions", "/metrics"):
        answer = httpx.request("GET", guarded.url + path, headers=headers, timeout=PATIENCE)
        assert answer.status_code == 401 and answer.json()["error"]["code"] in ("missing_api_key", "invalid_api_key")
        assert answer.headers["www-authenticate"] == "Bearer"
    assert httpx.get(guarded.admin_url + "/admin/drafts", headers=headers, timeout=PATIENCE).status_code == 401
    assert httpx.get(guarded.url + "/health", timeout=PATIENCE).status_code == 200


def test_a_bad_body_is_not_read_before_the_key(guarded: Server) -> None:
    assert guarded.post("/v1/completions", b"{", headers={"authorization": "Bearer none"}).status_code == 401


def test_a_key_opens_what_its_scopes_say(guarded: Server, make: Make) -> None:
    paths = {"infer": f"{guarded.url}/v1/models", "metrics": f"{guarded.url}/metrics",
             "admin": f"{guarded.admin_url}/admin/drafts"}  # fmt: skip
    for scope in paths:
        secret, _ = make(scopes=[scope])
        for other, url in paths.items():
            answer = httpx.get(url, headers={"authorization": f"Bearer {secret}"}, timeout=PATIENCE)
            assert answer.status_code == (200 if other == scope else 403), (scope, other)
            if other != scope:
                assert answer.json()["error"]["code"] == "insufficient_permissions"


def test_a_key_names_the_tenant(guarded: Server, make: Make) -> None:
    secret, _ = make("zeta")
    assert ask(guarded, secret).status_code == 200
    with guarded.store() as store:
        until(lambda: "zeta" in [row.by["tenant"] for row in store.outcomes.acceptance(["tenant"])], "it is counted")


def test_requests_a_minute(guarded: Server, make: Make) -> None:
    secret, _ = make(requests_per_minute=2)
    answers = [ask(guarded, secret, max_tokens=1) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[0].headers["x-ratelimit-remaining-requests"] == "1"
    assert answers[2].json()["error"]["code"] == "rate_limit_exceeded" and int(answers[2].headers["retry-after"]) > 0


def test_tokens_a_minute(guarded: Server, make: Make) -> None:
    secret, _ = make(tokens_per_minute=20)
    assert ask(guarded, secret, max_tokens=30, ignore_eos=True).status_code == 200, "it has what it needs to begin"
    assert ask(guarded, secret).status_code == 429


def test_a_key_that_is_revoked_in_mid_stream_ends_the_stream(guarded: Server, make: Make) -> None:
    secret, key = make()
    body = {"model": None, "prompt": "a", "max_tokens": 1900, "stream": True, "extra_body": {"ignore_eos": True}}
    stream = guarded.client(secret).completions.create(**body)
    next(stream)
    with guarded.store() as store:
        store.keys.revoke(key.id)
    with pytest.raises(openai.APIError, match="revoked"):
        list(stream)
    assert ask(guarded, secret).status_code == 401


def test_tenants_share_a_full_server(guarded: Server, make: Make) -> None:
    """One tenant fills rows and line; another's request does not wait for all of that."""
    greedy, modest = make("greedy")[0], make("modest")[0]
    body = {"model": None, "prompt": ["a"] * 12, "max_tokens": 60, "stream": True, "extra_body": {"ignore_eos": True}}
    stream = guarded.client(greedy).completions.create(**body)
    next(stream)
    assert ask(guarded, modest, max_tokens=1).status_code == 200
    unfinished = sum(chunk.choices[0].finish_reason is not None for chunk in stream if chunk.choices)
    assert unfinished >= 4, "the modest one was answered before the greedy one's last four had a row"


def test_the_command_makes_lists_and_revokes(guarded: Server) -> None:
    def osd(*arguments: str) -> Result:
        return CliRunner().invoke(app, ["keys", *arguments], env={"OSD_STORAGE__DIRECTORY": str(guarded.data)})

    made = json.loads(osd("create", "--tenant", "cli", "--requests", "5", "--expires", "1h", "--json").stdout)
    assert made["key"].startswith("osd-") and made["scopes"] == ["infer"]
    until(lambda: ask(guarded, made["key"]).status_code == 200, "the server knows it")
    assert osd("revoke", made["id"], "--yes").exit_code == 0
    until(lambda: ask(guarded, made["key"]).status_code == 401, "the server has forgotten it")
    listed = osd("list", "--json").stdout
    assert (
        made["key"] not in listed and next(row for row in json.loads(listed) if row["id"] == made["id"])["revoked_at"]
    )
    assert osd("revoke", "key-none", "--yes").exit_code == 3
    assert osd("create", "--scope", "root").exit_code == 2


def test_other_addresses_need_keys(tmp_path: Path) -> None:
    server = start(tmp_path, "--host", "0.0.0.0")
    assert server.process.wait(PATIENCE) == 2 and "osd keys create" in server.log
