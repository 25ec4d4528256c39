"""Every text of a chat is in what the model reads, or is refused by its name."""

from __future__ import annotations

import json
from copy import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osd.chat_template import Chat, tool_call
from osd.prompts import encode
from storage.errors import BadRequest
from tests.support import chat_templates as templates
from tests.support.chat_templates import template

WORD = st.text("abcdefgh", min_size=3, max_size=6)
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather", "description": "The weather somewhere",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}  # fmt: skip


def user(content: Any = "Hello", **fields: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **fields}


def called(*names: str, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [tool_call(name) for name in names], **fields}


@st.composite
def messages(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Messages of every role, with strings and parts, calls and what came of them."""
    made: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(1, 4))):
        words = draw(st.lists(WORD, min_size=1, max_size=3))
        content = draw(st.sampled_from([words[0], [{"type": "text", "text": word} for word in words]]))
        match draw(st.sampled_from(["system", "user", "assistant", "call"])):
            case "call":
                made += [called(*words[:1]), {"role": "tool", "content": content, "tool_call_id": "osdmark00"}]
            case role:
                made.append({"role": role, "content": content})
    return made


def texts(message: dict[str, Any]) -> list[str]:
    """The texts that a message says."""
    content, calls = message.get("content") or [], message.get("tool_calls", [])
    said = [content] if isinstance(content, str) else [part["text"] for part in content]
    functions = [call["function"] for call in calls]
    return said + [text for one in functions for text in (one["name"], *one["arguments"].values())]


@pytest.mark.parametrize("source", [templates.HERMES, templates.LLAMA, templates.MISTRAL, templates.BOTH])
@given(chat=messages())
def test_every_text_is_shown_or_its_field_is_named(source: str, chat: list[dict[str, Any]]) -> None:
    try:
        shown = template(source).render(Chat(chat))
    except BadRequest as error:
        i, field = error.facts["field"].split(".")[1:3]
        assert chat[int(i)].get(field), error
        return
    for message in chat:
        for text in texts(message):
            assert text in shown


@pytest.mark.parametrize("source", [templates.HERMES, templates.LLAMA, templates.MISTRAL])
def test_what_a_family_can_say_is_taken(source: str) -> None:
    chat = [user(), called("weather"), {"role": "tool", "content": "Rain", "tool_call_id": "osdmark00"}, user("Why?")]
    shown = template(source).render(Chat(chat, tools=[WEATHER]))
    for text in ("Hello", '"weather', "weathervalue", "Rain", "Why?", "The weather somewhere"):
        assert text in shown


def test_the_plain_chat_is_what_transformers_says() -> None:
    chat = [{"role": "system", "content": "Be brief."}, user(), {"role": "assistant", "content": "Yes"}, user("So?")]
    tokenizer = templates.tokenizer()
    for source in (templates.HERMES, templates.LLAMA, templates.MISTRAL, templates.BOTH, None):
        wanted = tokenizer.apply_chat_template(chat, chat_template=source, add_generation_prompt=True, tokenize=False)
        assert template(source).render(Chat(chat)) == wanted  # type: ignore[arg-type]


def test_parts_and_strings_are_given_as_the_template_reads_them() -> None:
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    for source in (templates.HERMES, templates.PARTS, templates.BOTH):
        made = template(source)
        assert made.render(Chat([user(parts)])) == made.render(Chat([user("Hello")]))
        assert "Hello" in made.render(Chat([user("Hello")]))


LOST: dict[str, tuple[str, list[dict[str, Any]], dict[str, Any], str]] = {
    # name: template, messages, further fields of the chat, the field that is named
    "all texts": (templates.DEAF, [user()], {}, "messages.0.content"),
    "the system's": (templates.USERS, [{"role": "system", "content": "Be brief."}, user()], {}, "messages.0.content"),
    "calls": (templates.BOTH, [user(), called("weather")], {}, "messages.1.tool_calls.0"),
    "content beside a call": (templates.LLAMA, [user(), called("weather", content="So")], {}, "messages.1.content"),
    "a name": (templates.HERMES, [user(name="Ada")], {}, "messages.0.name"),
    "reasoning": (templates.LLAMA, [user(), {"role": "assistant", "content": "Yes", "reasoning": "Hm"}], {},
                  "messages.1.reasoning"),
    "a field that it does not know": (templates.HERMES, [user(weight=2)], {}, "messages.0.weight"),
    "tools": (templates.BOTH, [user()], {"tools": [WEATHER]}, "tools"),
    "documents": (templates.BOTH, [user()], {"documents": [{"text": "a"}]}, "documents"),
    "a variable": (templates.BOTH, [user()], {"variables": {"enable_thinking": False}},
                   "chat_template_kwargs.enable_thinking"),
    "a variable that is a field": (templates.HERMES, [user()], {"variables": {"tools": []}},
                                   "chat_template_kwargs.tools"),
}  # fmt: skip


@pytest.mark.parametrize("name", LOST)
def test_what_would_be_lost_is_refused_by_name(name: str) -> None:
    source, chat, fields, field = LOST[name]
    with pytest.raises(BadRequest) as caught:
        template(source).render(Chat(chat, **fields))
    assert caught.value.facts["field"] == field


def test_a_name_is_taken_where_it_is_shown() -> None:
    assert "Ada" in template(templates.NAMES).render(Chat([user(name="Ada")]))


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content", "thinking"])
def test_reasoning_comes_under_any_of_its_names(field: str) -> None:
    shown = template(templates.HERMES).render(Chat([user(), {"role": "assistant", "content": "Yes", field: "Hm"}]))
    assert "<think>Hm</think>" in shown


def test_the_templates_own_variables() -> None:
    made = template(templates.HERMES)
    closed = made.render(Chat([user()], variables={"enable_thinking": False}))
    assert closed == made.render(Chat([user()])) + "<think>\n\n</think>\n\n"


def test_how_a_chat_ends() -> None:
    chat, made = [user(), {"role": "assistant", "content": "I say"}], template(templates.HERMES)
    assert made.render(Chat(chat, add_generation_prompt=False, continue_final_message=True)).endswith("I say")
    assert made.render(Chat(chat, add_generation_prompt=False)).endswith("I say\n")
    assert made.render(Chat(chat)).endswith("I say\n<|assistant|>\n")


def test_what_a_template_raises_is_its_answer() -> None:
    with pytest.raises(BadRequest, match="one call at a time"):
        template(templates.LLAMA).render(Chat([user(), called("a", "b")]))
    with pytest.raises(BadRequest, match="nine characters"):
        template(templates.MISTRAL).render(Chat([user(), called("a") | {"tool_calls": [tool_call("a") | {"id": "1"}]}]))


def test_a_shape_is_tried_once() -> None:
    made, count = template(templates.HERMES), 0
    apply = made._apply

    def counting(*given: Any) -> str:
        nonlocal count
        count += 1
        return apply(*given)

    made._apply = counting  # type: ignore[method-assign]
    for i in range(10):
        made.render(Chat([user(f"Question {i}")]))
    assert count == 11


def test_a_command_reads_the_template_too() -> None:
    tokenizer = copy(templates.tokenizer())
    tokenizer.chat_template = templates.PARTS
    assert tokenizer.decode(encode(tokenizer, "Hello")) == "<|user|>\nHello\n<|assistant|>\n"
    tokenizer.chat_template = templates.DEAF
    with pytest.raises(BadRequest, match="--raw"):
        encode(tokenizer, "Hello")
    assert tokenizer.decode(encode(tokenizer, "Hello", raw=True)) == "Hello"


def test_arguments_are_given_as_an_object() -> None:
    shown = template(templates.HERMES).render(Chat([user(), called("weather")]))
    assert json.dumps({"argument": "weathervalue"}) in shown
