"""What is kept of the rows that people have is what a served chat of the same messages would have left."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from osd.server.http.conversations import Conversation, RowReader
from osd.server.http.row_forms import Turns
from storage.errors import BadPromptFile
from tests.osd.server.test_conversations import END, ids, served
from tests.support import chat_templates as templates

HERE = Path("a.jsonl")
TOOL = {"type": "function", "function": {"name": "shops", "parameters": {"type": "object"}}}
Said = dict[str, Any]


def hermes(said: Said) -> str:
    thought = f"<think>{said['reasoning_content']}</think>\n" if "reasoning_content" in said else ""
    return thought + said["content"] + "".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls(said))


def thinking(said: Said) -> str:
    plain = hermes({name: value for name, value in said.items() if name != "reasoning_content"})
    return f"<think>\n{said.get('reasoning_content', '')}\n</think>\n\n{plain}"


def xml(said: Said) -> str:
    plain = hermes({**said, "tool_calls": []})
    for call in said.get("tool_calls", ()):
        given = json.loads(call["function"]["arguments"])
        values = "".join(f"<parameter={key}>{value}</parameter>" for key, value in given.items())
        plain += f"<tool_call>\n<function={call['function']['name']}>{values}</function>\n</tool_call>"
    return plain


def opening(said: Said) -> str:
    return f"{said['reasoning_content']}\n</think>\n\n{said['content']}"


def llama(said: Said) -> str:
    (call,) = calls(said)
    return call.replace('"arguments"', '"parameters"')


def mistral(said: Said) -> str:
    made = [call["function"] for call in said["tool_calls"]]
    return "".join(f"[TOOL_CALLS]{one['name']}[ARGS]{one['arguments']}" for one in made)


def calls(said: Said) -> list[str]:
    made = [call["function"] for call in said.get("tool_calls", ())]
    return [f'{{"name": "{one["name"]}", "arguments": {one["arguments"]}}}' for one in made]


Writer = Callable[[Said], str]
FAMILIES: dict[str, tuple[str | None, frozenset[str], Writer | None]] = {
    "shipped": (None, frozenset(), None),
    "hermes": (templates.HERMES, frozenset({"reasoning_content", "tool_calls"}), hermes),
    "llama": (templates.LLAMA, frozenset({"tool_calls", "alone"}), llama),
    "mistral": (templates.MISTRAL, frozenset(), None),
    "mistral, newer": (templates.NEW_MISTRAL, frozenset({"tool_calls", "alone"}), mistral),
    "xml": (templates.XML, frozenset({"reasoning_content", "tool_calls"}), xml),
    "parts": (templates.PARTS, frozenset(), None),
    "both": (templates.BOTH, frozenset(), None),
    "thinking": (templates.THINKING, frozenset({"reasoning_content", "tool_calls"}), thinking),
    "opening": (templates.OPENING, frozenset({"reasoning_content"}), opening),
    "trimmed": (templates.TRIMMED, frozenset(), None),
}
"""A template, what its answers may have beside text, and the plain way in which a model of the family writes them."""
WORDS = st.text("abc éß.?!\n<{", min_size=1, max_size=12).filter(lambda text: text == text.strip())


def call_of(arguments: dict[str, str]) -> Said:
    function = {"name": "shops", "arguments": json.dumps(arguments, ensure_ascii=False)}
    return {"id": "abcdefghi", "type": "function", "function": function}


@st.composite
def chats(draw: st.DrawFn) -> tuple[str, list[Said], Said, str]:
    """A family, the messages of a chat, the answer as a server reports it, and what the model wrote."""
    family = draw(st.sampled_from(sorted(FAMILIES)))
    _, shown, write = FAMILIES[family]
    history = draw(st.lists(st.tuples(WORDS, WORDS), max_size=2))
    messages = [
        {"role": role, "content": text}
        for turn in history for role, text in zip(("user", "assistant"), turn, strict=True)
    ]  # fmt: skip
    answer: Said = {"role": "assistant", "content": draw(WORDS | st.just(" so. "))}
    if write is not None and (chosen := draw(st.sets(st.sampled_from(sorted(shown - {"alone"})), min_size=1))):
        answer["content"] = answer["content"].strip()
        if "reasoning_content" in chosen:
            answer["reasoning_content"] = draw(WORDS)
        if "tool_calls" in chosen:
            answer["tool_calls"] = [call_of(draw(st.dictionaries(st.sampled_from("xy"), WORDS, max_size=2)))]
            answer["content"] = "" if "alone" in shown else answer["content"]
        return family, [*messages, {"role": "user", "content": draw(WORDS)}], answer, write(answer)
    return family, [*messages, {"role": "user", "content": draw(WORDS)}], answer, answer["content"]


def read(row: Any, template: str | None, turns: Turns = "last") -> list[Conversation]:
    tokenizer = templates.tokenizer()
    reader = RowReader(tokenizer, {END, 2}, len(tokenizer), 512, template, (), turns)
    found = reader(HERE, 1, json.dumps(row).encode())
    assert not [one for one in found if isinstance(one, BadPromptFile)], (found, row)
    return [one for one in found if isinstance(one, Conversation)]


def sharegpt(messages: list[Said]) -> list[Said]:
    names = {"user": "human", "assistant": "gpt"}
    return [{"from": names[one["role"]], "value": one["content"]} for one in messages]


@settings(max_examples=250)
@given(chats())
def test_an_imported_chat_is_what_serving_it_would_have_kept(made: tuple[str, list[Said], Said, str]) -> None:
    """Of 250 chats of eleven families: histories, answers with reasoning and calls where the family writes them."""
    family, messages, answer, written = made
    template, _, _ = FAMILIES[family]
    tools = {"tools": [TOOL]} if "tool_calls" in answer else {}
    (prompt,) = served({"messages": messages, **tools}, template) or [()]
    expected = (*prompt, *ids(written))
    reason = "tool_calls" if "tool_calls" in answer else "stop"
    rows: list[Any] = [
        {"messages": [*messages, answer], **tools}, {"messages": messages, **tools, "response": api(answer, reason)},
        {"request": {"messages": messages, **tools}, "response": api(answer, reason)},
        {"messages": [*messages, {**answer, "weight": 1}, {"role": "user", "content": "and?"}], **tools},
    ]  # fmt: skip
    if set(answer) == {"role", "content"}:
        rows += [
            {"conversations": sharegpt([*messages, answer])},
            {"messages": messages, "response": answer["content"]},
        ]
        rows += [{"conversation": dict(zip(("from", "value"), zip(*(
            one.values() for one in sharegpt([*messages, answer])), strict=True), strict=True))}]  # fmt: skip
    for row in rows:
        (found,) = read(row, template)
        assert ((*found.prompt, *found.response), len(found.prompt)) == (expected, len(prompt)), (row, written)
        assert END in found.ends, "the end of the turn is learned"


def api(answer: Said, reason: str) -> Said:
    return {"choices": [{"index": 0, "message": answer, "finish_reason": reason}]}


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_each_answer_of_a_chat_is_learned_where_it_stands(family: str) -> None:
    template, _, _ = FAMILIES[family]
    user, said = {"role": "user", "content": "why?"}, {"role": "assistant", "content": "so."}
    messages = [user, said, user, {**said, "weight": 0}, user, said]
    found = read({"messages": messages}, template, "all")
    begins = [messages[:1], [user, said, user, said, user]]
    assert [one.prompt for one in found] == [(served({"messages": one}, template) or [()])[0] for one in begins]
    assert {one.response for one in found} == {ids("so.")}
    assert read({"messages": messages}, template) == found[-1:]


def test_what_was_thought_inside_of_a_text() -> None:
    """Behind a prompt that begins to think the opening tag is there once; elsewhere the text is as it was said."""
    user, said = {"role": "user", "content": "why?"}, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nso."}
    (found,) = read({"messages": [user, said]}, templates.OPENING)
    assert found.response == ids("hm\n</think>\n\nso.")
    (found,) = read({"messages": [user, said]}, templates.THINKING)
    assert found.response == ids(said["content"])


def test_calls_of_sharegpt_s_turns() -> None:
    turns = [
        {"from": "human", "value": "how many?"},
        {"from": "function_call", "value": '{"name": "shops", "arguments": {"x": "a"}}'},
        {"from": "observation", "value": "3"}, {"from": "gpt", "value": "Three."},
    ]  # fmt: skip
    tools = json.dumps([TOOL["function"]])
    found = read({"conversations": turns, "system": "SQL.", "tools": tools}, templates.HERMES, "all")
    told = {"role": "system", "content": "SQL."}, {"role": "user", "content": "how many?"}
    (prompt,) = served({"messages": [*told], "tools": [TOOL]}, templates.HERMES) or [()]
    assert found[0].prompt == prompt
    assert found[0].response == ids('<tool_call>\n{"name": "shops", "arguments": {"x": "a"}}\n</tool_call>')
    assert found[1].response == ids("Three.") and len(found) == 2


@pytest.mark.parametrize(
    ("row", "prompts"),
    [
        ({"prompt": [5, 6], "response": [7, END]}, [(5, 6)]),
        ({"prompt_token_ids": [5, 6], "token_ids": [7, END]}, [(5, 6)]),
        ({"request": {"messages": []}, "response": {"prompt_token_ids": [5, 6], "choices": [{"token_ids": [7, END]}]}},
         [(5, 6)]),
        ({"input_ids": [5, 6, 7, END], "labels": [-100, -100, 7, END]}, [(5, 6)]),
        ({"input_ids": [5, 7, END, 6, 7, END], "loss_mask": [0, 1, 1, 0, 1, 1]}, [(5,), (5, 7, END, 6)]),
    ],
)  # fmt: skip
def test_token_ids_are_kept_as_they_are(row: Any, prompts: list[tuple[int, ...]]) -> None:
    found = read(row, None, "all")
    assert [(one.prompt, one.response, one.ends) for one in found] == [(prompt, (7, END), ()) for prompt in prompts]
    assert read(row, None) == found[-1:]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"input_ids": [5, 6]}, "labels, loss_mask"), ({"input_ids": [5, 6], "labels": [6]}, "as long as it"),
        ({"input_ids": [5, 6], "labels": [-100, -100]}, "must say which"), ({"conversations": 5}, "no list of turns"),
        ({"conversations": [{"from": "human", "value": "a"}]}, "no message behind another"),
        ({"conversations": [{"from": "human", "value": "a"}, {"from": "function_call", "value": "{"}]}, "Expecting"),
        ({"conversations": [{"from": "nobody", "value": "a"}, {"from": "gpt", "value": "b"}]}, "messages.0.role"),
        ({"input_ids": [5, 999_999], "labels": [-100, 999_999]}, "ids run from 0"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [call_of({})]}],
          "tools": [TOOL]}, "tools: the chat template does not show"),
    ],
)  # fmt: skip
def test_a_row_that_says_too_little_is_refused(row: Any, says: str) -> None:
    tokenizer = templates.tokenizer()
    (found,) = RowReader(tokenizer, {END}, len(tokenizer), 512)(HERE, 3, json.dumps(row).encode())
    assert isinstance(found, BadPromptFile) and says in str(found) and "line 3 " in str(found), found
