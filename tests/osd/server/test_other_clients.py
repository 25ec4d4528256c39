"""Clients that others wrote over OpenAI's API."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from tests.osd.server.conftest import Server
from tests.osd.server.test_openai_client import Plain, framed

QUESTION = "Name a planet."


@pytest.mark.parametrize("stream", [False, True])
def test_langchain(server: Server, plain: Plain, pair, stream: bool) -> None:
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model="target", base_url=f"{server.url}/v1", api_key="none", temperature=0, max_tokens=16)
    made = [part.content for part in model.stream(QUESTION)] if stream else [model.invoke(QUESTION).content]
    assert "".join(made) == plain(framed(pair, QUESTION), 16)


@pytest.mark.parametrize("stream", [False, True])
def test_litellm(server: Server, plain: Plain, pair, stream: bool) -> None:
    litellm = pytest.importorskip("litellm", reason="heavy; install it by hand")
    made = litellm.completion(
        model="openai/target", api_base=f"{server.url}/v1", api_key="none", temperature=0, max_tokens=16,
        messages=[{"role": "user", "content": QUESTION}], stream=stream,
    )  # fmt: skip
    parts = [part.choices[0].delta.content or "" for part in made] if stream else [made.choices[0].message.content]
    assert "".join(parts) == plain(framed(pair, QUESTION), 16)


@pytest.mark.skipif(not shutil.which("curl"), reason="there is no curl")
def test_curl(server: Server, plain: Plain) -> None:
    body = {"prompt": "SELECT name FROM", "max_tokens": 12, "temperature": 0, "stream": True}
    command = ["curl", "-sN", f"{server.url}/v1/completions", "-H", "Content-Type: application/json", "-d"]
    lines = subprocess.run([*command, json.dumps(body)], capture_output=True, text=True, check=True).stdout.split(
        "\n\n"
    )
    events = [line.removeprefix("data: ") for line in lines if line]
    assert events[-1] == "[DONE]"
    assert "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1]) == plain("SELECT name FROM", 12)
