"""What people have of prompts and responses is read as the server reads it, or refused for the same reason."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from osd.prompts import read_lines
from osd.server.http import chat, completions
from osd.server.http.chat import ChatBody
from osd.server.http.completions import CompletionBody
from osd.server.http.conversations import Conversation, RowReader
from osd.server.http.service import Facts, Service
from osd.server.http.tool_calls import FORMS
from storage.errors import BadPromptFile, OsdError
from storage.settings import load_settings
from tests.support import chat_templates as templates

HERE = Path("a.jsonl")
END = 1
USER, SAID = {"role": "user", "content": "why?"}, {"role": "assistant", "content": "so."}
HERMES = templates.HERMES.replace("and loop.last", "")


@cache
def reader(template: str | None = None, stops: tuple[str, ...] = ()) -> RowReader:
    tokenizer = templates.tokenizer()
    return RowReader(tokenizer, {END, 2}, len(tokenizer), 512, template, stops)


@cache
def service(template: str | None) -> Service:
    """What the server reads requests with."""
    tokenizer: Any = templates.tokenizer()
    facts = Facts("m", 512, len(tokenizer), (END, 2), 8, template, 1.0, None, ())
    nothing: Any = None
    told = load_settings(server={"enable_auto_tool_choice": True, "tool_call_parser": next(iter(FORMS))})
    return Service(facts, told, nothing, nothing, nothing, tokenizer, nothing)


def read(row: Any, template: str | None = None, stops: tuple[str, ...] = ()) -> list[Conversation | BadPromptFile]:
    return reader(template, stops)(HERE, 1, json.dumps(row).encode())


def only(row: Any, template: str | None = None, stops: tuple[str, ...] = ()) -> Conversation:
    (found,) = read(row, template, stops)
    assert isinstance(found, Conversation), found
    return found


def refusal(row: Any, template: str | None = None) -> str:
    (found,) = read(row, template)
    assert isinstance(found, BadPromptFile), found
    return str(found)


def ids(text: str) -> tuple[int, ...]:
    return tuple(templates.tokenizer().encode(text, add_special_tokens=False))


def served(body: dict[str, Any], template: str | None) -> list[tuple[int, ...]] | None:
    """The prompts that the server makes of a body; None where it refuses it."""
    try:
        if "messages" in body:
            asked = chat._asked(service(template), ChatBody.model_validate(body))
        else:
            asked = completions._asked(service(template), CompletionBody.model_validate(body))
    except (OsdError, ValidationError, RecursionError):
        return None
    return [prompt.tokens for prompt in asked.prompts]


def test_every_form_gives_prompt_and_response() -> None:
    answer = {"choices": [{"message": SAID}]}
    chats: list[Any] = [
        {"prompt": "why?", "response": "so."}, {"prompt": "why?", "completion": "so."}, {"messages": [USER, SAID]},
        {"messages": [USER], "response": answer}, {"request": {"messages": [USER]}, "response": answer},
        {"prompt": "why?", "response": None, "output": "so.", "id": 7, "source": {"file": "a"}},
    ]  # fmt: skip
    (prompt,) = served({"messages": [USER]}, None) or [()]
    for row in chats:
        logged = isinstance(row.get("response"), dict)
        assert only(row) == Conversation(prompt, ids("so."), () if logged else (END, 2), "default"), row
    for body in ({"prompt": "why?"}, {"prompt": list(ids("why?"))}):
        row = {"request": body, "response": {"choices": [{"text": "so."}]}}
        assert only(row) == Conversation(ids("why?"), ids("so."), (), "default")
    assert only({"prompt": "why?", "response": {"choices": [{"text": "so."}]}}).prompt == ids("why?")
    assert only({"context": "Shops.", "prompt": "why?", "response": "so."}).prompt == (
        served({"messages": [{"role": "user", "content": "Shops.\n\nwhy?"}]}, None) or [()]
    )[0]  # fmt: skip


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TEXT = st.text(st.characters(codec="utf-8", max_codepoint=0x2FF), max_size=8)
JUNK: Any = st.sampled_from([5, True, 3.5, "\ud800", [], {}, [1], {"a": {}}, "x", None, [{"type": "image_url"}]])


def often(likely: Any) -> Any:
    """The likely, and now and then something else."""
    return st.integers(0, 9).flatmap(lambda turn: JUNK if turn == 0 else likely)


PARTS = st.lists(TEXT.map(lambda text: {"type": "text", "text": text}), max_size=2)
MESSAGES = often(st.lists(often(st.fixed_dictionaries(
    {"role": often(st.sampled_from(["system", "developer", "user", "assistant", "tool"])),
     "content": often(TEXT | PARTS)},
    optional={"name": TEXT, "tool_calls": often(st.just([CALL])), "tool_call_id": st.just("1"),
              "reasoning_content": often(TEXT)},
)), min_size=1, max_size=4))  # fmt: skip
SAMPLING = {
    "temperature": often(st.floats(0, 2)), "n": often(st.just(1)), "model": st.just("elsewhere"), "top_p": st.just(1),
    "seed": st.integers(0, 9), "frequency_penalty": often(st.just(0.5)), "unknown": st.just(1), "store": st.booleans(),
    "logit_bias": often(st.just({"3": 1.0})), "add_special_tokens": st.booleans(), "functions": JUNK,
}  # fmt: skip
CHATS = st.fixed_dictionaries({"messages": MESSAGES}, optional={
    **SAMPLING, "tools": often(st.just([TOOL])), "chat_template_kwargs": often(st.sampled_from([
        {"enable_thinking": False}, {"enable_thinking": True}, {"unread": 1}, {"tokenize": True}])),
    "reasoning_effort": often(st.sampled_from(["none", "low"])), "documents": often(st.just([{"text": "a"}])),
    "continue_final_message": st.booleans(), "add_generation_prompt": st.booleans(), "user": TEXT,
    "tool_choice": st.sampled_from(["none", "auto"]),
})  # fmt: skip
TOKENS = st.lists(often(st.integers(0, 5000)), max_size=4)
COMPLETIONS = st.fixed_dictionaries(
    {"prompt": often(TEXT | TOKENS | st.lists(TEXT, max_size=2) | st.lists(TOKENS, max_size=2))}, optional=SAMPLING
)
TEMPLATES = st.sampled_from([None, HERMES, templates.LLAMA, templates.MISTRAL, templates.DEAF])


@settings(max_examples=500)
@given(CHATS | COMPLETIONS, TEMPLATES)
@example({"prompt": [[5], []], "n": 5}, None)  # the empty one has no answers
@example({"prompt": ["0", "1"], "n": 5}, None)
def test_a_request_has_the_prompts_that_the_server_makes_of_it(body: dict[str, Any], template: str | None) -> None:
    """Of 500 bodies: chats with tools, calls, reasoning, variables, documents and parts, and completions of texts and
    ids, each field now and then something else; by five templates. Either both refuse it, or both read the same."""
    prompts = served(body, template)
    each = body["n"] if type(body.get("n")) is int else 1
    prompts = prompts and [prompt for prompt in prompts for _ in range(each)]
    choices = [{"index": index, "text": "so."} for index in range(len(prompts or [()]))]
    found = read({"request": body, "response": {"choices": choices}}, template)
    if prompts is None or not all(prompts):
        assert all(isinstance(one, BadPromptFile) for one in found), (body, prompts, found)
    else:
        assert [one.prompt for one in found if isinstance(one, Conversation)] == prompts, (body, found)
    row = {**body, "response": {"choices": choices}}  # the same without `request`
    beside = [one.prompt for one in read(row, template) if isinstance(one, Conversation)]
    assert not beside or beside == prompts or "unknown" in body or "user" in body


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"messages": [USER, SAID], "tools": [TOOL]}, "tools: the chat template does not show tools"),
        ({"messages": [USER, SAID], "chat_template_kwargs": {"x": 1}}, "chat_template_kwargs.x: the chat template"),
        ({"messages": [USER, {**SAID, "reasoning_content": "hm"}, USER, SAID]}, "does not read it"),
        ({"messages": [USER, {**SAID, "reasoning_content": "hm"}]}, "messages.1.reasoning: the chat template"),
        ({"messages": [USER], "response": {"choices": [{"message": {"tool_calls": [CALL]}}]}}, "1.tool_calls.0: "),
        ({"request": {"prompt": "a", "echo": True}, "response": "b"}, "echo"),
        ({"request": {"prompt": "a", "osd": {"learn": False}}, "response": "b"}, "nothing of this request is kept"),
        ({"messages": [USER, {**SAID, "content": 5}]}, "Input should be a valid string"),
        ({"messages": [{**USER, "content": True}, SAID]}, "messages.0.content.str: Input should be a valid string"),
        ({"messages": [USER, {**SAID, "tool_calls": 3}]}, "tool_calls: Input should be a valid list"),
        ({"prompt": "a\ud800", "response": "b"}, "half a surrogate pair"),
        ({"prompt": "a", "response": "b\udfff"}, "half a surrogate pair"),
        ({"prompt": "a", "response": "b", "tenant": "\ud800"}, "half a surrogate pair"),
        ({"prompt": "a", "response": "b", "tenant": "*"}, "tenant"),
        ({"prompt": "a", "response": "b", "tenant": 5}, "tenant"),
        ({"request": {"prompt": [999_999]}, "response": "b"}, "ids run from 0"),
        ({"prompt": "a " * 600, "response": "b"}, "a row holds 512"),
        ({"request": 5, "response": "b"}, "request: Input should be a valid dictionary"),
        ({"prompt": " ", "response": "b"}, "neither"), ({"prompt": "a"}, "response: there is none"),
        ({"prompt": "a", "response": ""}, "no text"), ({"prompt": "a", "response": {"choices": []}}, "at least 1 item"),
        ({"messages": [USER]}, "response: there is none"), ({"messages": ["a"], "response": "b"}, "messages.0"),
        ([], "body"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_named(row: Any, says: str) -> None:
    assert says in refusal(row) and "line 1" in refusal(row)


def test_what_a_template_shows_is_read() -> None:
    """The same rows, behind ``server.chat_template``."""
    thought = {"messages": [USER, {**SAID, "reasoning_content": "hm"}, USER, SAID]}
    assert "<think>hm</think>" in text_of(only(thought, HERMES))
    assert '"name": "f"' in text_of(only({"messages": [USER, SAID], "tools": [TOOL]}, HERMES))
    thinking = {"messages": [USER, SAID], "chat_template_kwargs": {"enable_thinking": False}}
    assert "<think>" in text_of(only(thinking, HERMES))


def text_of(one: Conversation) -> str:
    return str(templates.tokenizer().decode(one.prompt))


def test_each_choice_is_a_conversation_of_its_own() -> None:
    choices = [{"index": i, "message": {"content": text}} for i, text in enumerate(["so.", "no.", "so."])]
    found = read({"request": {"messages": [USER], "n": 3}, "response": {"choices": choices}})
    assert [one.response for one in found if isinstance(one, Conversation)] == [ids("so."), ids("no."), ids("so.")]
    texts = [{"index": i, "text": text} for i, text in enumerate(["a", "b", "c", "d"])]
    found = read({"request": {"prompt": ["one", "two"], "n": 2}, "response": {"choices": texts[::-1]}})
    assert [(one.prompt, one.response) for one in found if isinstance(one, Conversation)] == [
        (ids("two"), ids("d")), (ids("two"), ids("c")), (ids("one"), ids("b")), (ids("one"), ids("a"))
    ]  # fmt: skip


STOP = {"finish_reason": "stop"}


@pytest.mark.parametrize(
    ("body", "choice", "stops", "ends", "tail"),
    [
        ({}, {}, (), (), ""), ({}, {"finish_reason": "length"}, (), (), ""), ({}, STOP, (), (END, 2), ""),
        ({"stop": "x"}, STOP, (), (), ""), ({}, STOP, ("x",), (), ""),
        ({"stop": "x"}, {**STOP, "stop_reason": None}, (), (END, 2), ""),
        ({"stop": "x"}, {**STOP, "stop_reason": "x"}, (), (), "x"),
        ({"stop": "x", "include_stop_str_in_output": True}, {**STOP, "stop_reason": "x"}, (), (), ""),
        ({"stop_token_ids": [7]}, STOP, (), (END, 2, 7), ""),
        ({"stop_token_ids": [7], "ignore_eos": True}, STOP, (), (7,), ""),
        ({"stop_token_ids": [7]}, {**STOP, "stop_reason": 7}, (), (7,), ""),
        ({"stop_token_ids": [7]}, {**STOP, "stop_reason": None}, (), (END, 2), ""),
    ],
)  # fmt: skip
def test_the_end_token_came_where_the_answer_says_so(
    body: dict[str, Any], choice: dict[str, Any], stops: tuple[str, ...], ends: tuple[int, ...], tail: str
) -> None:
    row = {"request": {"prompt": "a", **body}, "response": {"choices": [{"text": "so.", **choice}]}}
    found = only(row, None, stops)
    assert (found.ends, found.response) == (ends, ids("so." + tail))


def test_the_end_token_of_a_text_that_shows_it_is_there_once() -> None:
    shown = templates.tokenizer().decode([END])
    choice = {"text": f"so.{shown}", **STOP}
    row = {"request": {"prompt": "a", "skip_special_tokens": False}, "response": {"choices": [choice]}}
    assert (only(row).response, only(row).ends) == ((*ids("so."), END), ())


GOOD = json.dumps({"prompt": "why?", "response": "so."}).encode()
NAMES = [
    "prompt", "messages", "response", "request", "role", "content", "choices", "message", "text", "tenant", "tools",
    "tool_calls", "n", "osd", "finish_reason", "stop_reason", "chat_template_kwargs", "index",
]  # fmt: skip
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5)
VALUES = st.recursive(LEAVES, lambda x: st.lists(x, max_size=4) | st.dictionaries(st.sampled_from(NAMES), x))
DEEP = [b"[" * 100_000, b'{"a":' * 100_000, b'{"prompt":' + b"[" * 900 + b"]" * 900 + b"}", b"\xff", b"1e999"]
LINES = (
    st.binary(max_size=40).filter(bytes.strip).map(lambda line: line.replace(b"\n", b" "))
    | st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=6).map(lambda row: json.dumps(row).encode())
    | (CHATS | COMPLETIONS).map(lambda body: json.dumps({"request": body, "response": "so."}).encode())
    | st.sampled_from(DEEP)
)


@settings(max_examples=300)
@given(st.lists(LINES, min_size=1, max_size=8), TEMPLATES)
def test_a_bad_line_costs_itself_alone(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], template: str | None
) -> None:
    """300 files of one to eight lines: bytes, JSON of the fields' names, bodies with something else in them, and depths
    that end a parser; between two sound lines, which are read."""
    path = tmp_path_factory.mktemp("lines") / "a.jsonl"
    path.write_bytes(b"\n".join([GOOD, *lines, GOOD]))
    found = list(read_lines(path, reader(template)))
    assert all(isinstance(one, Conversation | BadPromptFile) for some in found for one in some)
    assert len(found) == len(lines) + 2 and type(found[0][0]) is type(found[-1][0])
    assert template == templates.DEAF or found[0] == found[-1] == reader(template)(path, 1, GOOD)
    bad = [one for some in found for one in some if isinstance(one, BadPromptFile)]
    assert all(f"line {one.facts['line']} " in str(one) for one in bad)
