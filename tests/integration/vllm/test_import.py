"""A draft learns from what somebody has, before it serves, and is then published to a vLLM that is attached later."""

from __future__ import annotations

import json

import pytest

from osd.demo import TARGET
from osd.demo.prompts import prompts as shipped
from osd.demo.runner.process import worker_beside
from tests.integration.vllm.conftest import Serving, acceptance, home_of, some_prompts, until

pytestmark = pytest.mark.vllm
LOGGED = 80


def test_a_draft_learns_from_a_file_into_an_empty_store(vllm: Serving) -> None:
    answers = vllm.ask(some_prompts("sql", LOGGED))
    texts = [one["choices"][0]["text"] for one in answers]
    lines = [
        {"prompt": asked, "response": said} if number % 2 else
        {"request": {"messages": [{"role": "user", "content": asked}]},
         "response": {"choices": [{"message": {"role": "assistant", "content": said}}]}}
        for number, (asked, said) in enumerate(zip(shipped("sql", LOGGED), texts, strict=True))
    ]  # fmt: skip
    file = vllm.folder / "logged.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    assert acceptance(answers) < 0.05
    with home_of(vllm, "imported") as home:
        done = home.osd("replay", "import", file, "--target", TARGET, "--draft", vllm.draft, "--route", "sql")
        assert done.returncode == 0 and f"Kept {LOGGED} requests" in done.stderr, done.stderr
        with worker_beside(home.config, vllm.folder / "import-worker.log"):
            until(lambda: home.store.versions.current("sql").number >= 1)
        added = home.osd("engines", "add", vllm.url, "--draft", "sql")
        assert added.returncode == 0, added.stderr
        until(lambda: home.store.versions.serving("sql").get("vllm") == home.store.versions.current("sql").id)
        assert acceptance(vllm.ask(some_prompts("sql", 20, skip=LOGGED))) > 0.3
        home.osd("engines", "remove", "vllm")
