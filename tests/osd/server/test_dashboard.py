"""The dashboard's page, what it asks for, and what it must not show."""

from __future__ import annotations

import re

import httpx
import pytest

from tests.osd.server.conftest import Server
from tests.support.waiting import PATIENCE, until

PROMPT = "SELECT the name of the oldest zebra"


def finish(server: Server, **fields: object) -> str:
    """A request's own text."""
    asked = {"prompt": PROMPT, "max_tokens": 24, "temperature": 0, "ignore_eos": True, **fields}
    answer = server.post("/v1/completions", asked)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


def bare(server: Server, path: str) -> httpx.Response:
    return httpx.get(server.admin_url + path, timeout=PATIENCE, follow_redirects=True)


def test_the_page_needs_no_other_host(server: Server) -> None:
    page = bare(server, "/")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
    assert (nonce := re.search(r"'nonce-([\w-]+)'", policy)) and f'nonce="{nonce[1]}"' in page.text
    found = set(re.findall(r'(?:src|href)="(/[^"]+)"', page.text))
    assert {"/dashboard/plotly.min.js", "/dashboard/app.js", "/dashboard/dashboard.css"} <= found
    modules = {f"/dashboard/{name}" for path in found if path.endswith("app.js")
               for name in re.findall(r"from '\./([\w.]+)'", bare(server, path).text)}  # fmt: skip
    for path in found | modules:
        answer = bare(server, path)
        assert answer.status_code == 200 and answer.headers["x-content-type-options"] == "nosniff", path
        if "plotly" not in path:
            assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", answer.text), path
    assert bare(server, "/dashboard/../page.py").status_code == bare(server, "/dashboard/page.py").status_code == 404


def test_numbers_are_behind_the_key_and_the_page_is_not(guarded: Server) -> None:
    assert bare(guarded, "/dashboard").status_code == 200
    for name in ("timeline", "runs", "routes", "gain", "inside"):
        assert bare(guarded, f"/admin/dashboard/{name}").status_code == 401, name
        assert guarded.get(f"/admin/dashboard/{name}").status_code == 200, name


def test_with_keys_no_text_is_held(guarded: Server) -> None:
    finish(guarded)
    assert guarded.get("/admin/dashboard/inside").json() == {"allowed": False, "requests": []}


def test_a_look_inside_has_the_text_and_how_it_came(server: Server) -> None:
    said = finish(server)
    (newest, *_) = server.get("/admin/dashboard/inside").json()["requests"]
    assert PROMPT not in str(newest), "the list has no text"
    one = server.get(f"/admin/dashboard/inside/{newest['id']}").json()
    assert one["prompt"] == PROMPT and newest["tokens"] == 24
    pieces = [piece for turn in one["rounds"] for piece in turn["pieces"]]
    assert "".join(piece["text"] for piece in pieces) == said and len(pieces) == 24
    for turn in one["rounds"][:-1]:  # the last may be cut short
        kinds = [piece["kind"] for piece in turn["pieces"]]
        last = "own" if turn["refused"] is None else "corrected"
        assert kinds == ["accepted"] * turn["accepted"] + [last]
        assert (turn["accepted"] < turn["drafted"]) == (turn["refused"] is not None)


def test_what_may_not_be_learned_from_is_not_held(server: Server) -> None:
    before = server.get("/admin/dashboard/inside").json()["requests"]
    finish(server, osd={"learn": False})
    assert server.get("/admin/dashboard/inside").json()["requests"] == before
    assert server.get("/admin/dashboard/inside/unknown").status_code == 404


def test_what_the_page_asks_for(server: Server) -> None:
    finish(server)
    until(lambda: server.get("/admin/dashboard/timeline?seconds=900").json()["points"], "it is written")
    for seconds in (3600, 86400, 604800, 7776000):
        points = server.get(f"/admin/dashboard/timeline?seconds={seconds}").json()["points"]
        assert sum(point["requests"] for point in points) >= 1, seconds
    assert server.get("/admin/dashboard/timeline?seconds=1").status_code == 400
    (route, *_) = server.get("/admin/dashboard/routes").json()["routes"]
    assert route["name"] == "default" and route["traffic"]["requests"] >= 1
    gain = server.get("/admin/dashboard/gain").json()
    (row,) = gain["rows"]
    assert gain["pay_back"] == [], "nothing was trained"
    assert row["draft"] == "default" and row["training_seconds"] == 0
    assert server.get("/admin/dashboard/runs").json() == []


@pytest.mark.parametrize("path", ["timeline", "runs", "routes", "gain"])
def test_no_text_anywhere_else(server: Server, path: str) -> None:
    finish(server)
    assert "zebra" not in server.get(f"/admin/dashboard/{path}").text
