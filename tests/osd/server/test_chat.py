"""The chat template of a server is tried when it starts."""

from __future__ import annotations

import logging
from copy import copy
from pathlib import Path

import pytest

from osd.chat_template import TOOL, Chat, ChatTemplate
from osd.server.http.chat import read_template
from storage.errors import BadSetting
from tests.support import chat_templates as templates

HELLO = [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize("source", [templates.DEAF, "{{ messages[0].content", "{{ raise_exception('no') }}"])
def test_a_template_that_shows_no_message_is_refused(tmp_path: Path, source: str) -> None:
    with pytest.raises(BadSetting, match=r"server\.chat_template"):
        read_template(Path(templates.written(tmp_path, source)), templates.tokenizer())


def test_a_template_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "template.jinja").write_bytes(b"\xff\xfe")
    for name in ("template.jinja", "nowhere.jinja"):
        with pytest.raises(BadSetting, match="cannot be read"):
            read_template(tmp_path / name, templates.tokenizer())


def test_what_a_template_will_lose_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert read_template(Path(templates.written(tmp_path, templates.HERMES)), templates.tokenizer())
        assert not caplog.records
        assert read_template(Path(templates.written(tmp_path, templates.USERS)), templates.tokenizer())
    assert [record.getMessage().split(" will")[0] for record in caplog.records] == [
        "chats of system, user", "chats of user, assistant, user",
    ]  # fmt: skip


def test_the_models_own_template_is_refused_with_each_chat_only(caplog: pytest.LogCaptureFixture) -> None:
    """Texts may still be completed."""
    tokenizer = copy(templates.tokenizer())
    tokenizer.chat_template = templates.DEAF
    with caplog.at_level(logging.WARNING):
        assert read_template(None, tokenizer) is None
    assert len(caplog.records) == len(("user", "system, user", "user, assistant, user"))
    tokenizer.chat_template = None
    assert read_template(None, tokenizer) is None and not ChatTemplate(tokenizer).exists


def test_a_model_may_have_a_template_for_tools() -> None:
    tokenizer = copy(templates.tokenizer())
    tokenizer.chat_template = {"default": templates.BOTH, "tool_use": templates.HERMES}
    template = ChatTemplate(tokenizer)
    assert TOOL["function"]["name"] in template.render(Chat(HELLO, tools=[TOOL]))
    assert not template.reads("enable_thinking") and template.reads("enable_thinking", tools=True)
