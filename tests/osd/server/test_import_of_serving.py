"""What a server has answered, imported into another store: the ids and positions of having served it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from osd.demo import DRAFT, TARGET
from storage.records import RequestSamples
from storage.settings import load_settings
from storage.store import Store, open_store
from tests.osd.server.conftest import serving
from tests.support import chat_templates as templates

TOOL = {"type": "function", "function": {"name": "shops", "parameters": {"type": "object"}}}
USER = {"role": "user", "content": "How many shops are there?"}
SAID = {"role": "assistant", "content": "Three.", "reasoning_content": "I counted them."}
CHATS: list[dict[str, Any]] = [
    {"messages": [USER]}, {"messages": [USER], "tools": [TOOL], "tool_choice": "none"},
    {"messages": [USER], "chat_template_kwargs": {"enable_thinking": False}}, {"messages": [USER, SAID, USER]},
    {"messages": [{"role": "system", "content": "SQL."}, {**USER, "content": [{"type": "text", "text": "List."}]}]},
    {"messages": [USER, {"role": "assistant", "content": "INSERT"}], "continue_final_message": True,
     "add_generation_prompt": False},
    {"messages": [USER], "n": 2, "temperature": 0.7, "seed": 5},
]  # fmt: skip
TEXTS: list[dict[str, Any]] = [
    {"prompt": "SELECT name FROM"}, {"prompt": [5, 6, 7]}, {"prompt": ["SELECT a", "SELECT b"], "n": 2, "seed": 1},
    {"prompt": "SELECT name FROM", "max_tokens": 3}, {"prompt": "SELECT name FROM", "ignore_eos": True},
]  # fmt: skip


def kept(store: Store) -> dict[tuple[int, ...], RequestSamples]:
    found = store.samples.read(store.samples.recent(limit=99))
    return {tuple(one.tokens.tolist()): one for one in found}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(templates.written(tmp_path_factory.mktemp("t"), templates.HERMES.replace("and loop.last", "")))


def test_an_import_gives_what_serving_gave(tmp_path: Path, template: Path) -> None:
    rows: list[dict[str, Any]] = []
    answers: list[dict[str, Any]] = []
    told = {"OSD_SERVER__CHAT_TEMPLATE": str(template), "OSD_STORAGE__FLUSH_SECONDS": "0.1"}
    with serving(tmp_path / "served", "--target", str(TARGET), "--draft", str(DRAFT), **told) as server:
        for path, bodies in (("/v1/chat/completions", CHATS), ("/v1/completions", TEXTS)):
            for body in ({"temperature": 0, "max_tokens": 60, **body} for body in bodies):
                answer = server.post(path, body)
                assert answer.status_code == 200, answer.text
                rows.append(row_of(body, answer.json(), len(rows)))
                answers += answer.json()["choices"]
        server.process.terminate()
        server.process.wait()
        with server.store() as store:
            served = kept(store)
    assert {choice["finish_reason"] for choice in answers} == {"stop", "length"}
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    imported = import_rows(tmp_path, template)
    read_alike = served.keys() & imported.keys()  # a text may be written by other tokens than it is read by
    assert len(imported) == len({*served}) and len(read_alike) >= 0.7 * len(served)
    assert any(tokens[-1] == templates.tokenizer().eos_token_id for tokens in read_alike), "the end token is learned"
    for tokens in read_alike:
        one, other = served[tokens], imported[tokens]
        assert one.prompt_len == other.prompt_len and one.positions.tolist() == other.positions.tolist()
        assert (one.topk_ids[:, 0] == other.topk_ids[:, 0]).all()


def row_of(body: dict[str, Any], answer: dict[str, Any], number: int) -> dict[str, Any]:
    """What somebody keeps of a call: request and response or, of every other chat, its messages."""
    if number % 2 or "messages" not in body or body.get("n"):
        return {"request": body, "response": answer}
    (choice,) = answer["choices"]
    messages = [*body["messages"], choice["message"]]
    return {**body, "messages": messages, "finish_reason": choice["finish_reason"]}


def import_rows(folder: Path, template: Path) -> dict[tuple[int, ...], RequestSamples]:
    told = {
        **os.environ, "OSD_STORAGE__DIRECTORY": str(folder / "imported"), "OSD_SERVER__CHAT_TEMPLATE": str(template),
    }  # fmt: skip
    command = [sys.executable, "-m", "osd.cli.main", "replay", "import", str(folder / "rows.jsonl")]
    done = subprocess.run(
        [*command, "--target", str(TARGET), "--draft", str(DRAFT)], env=told, capture_output=True, text=True
    )
    assert done.returncode == 0 and "could not be used" not in done.stderr, done.stderr
    with open_store(load_settings(storage={"directory": folder / "imported"})) as store:
        return kept(store)
