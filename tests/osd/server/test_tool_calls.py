"""Calls of tools in an answer's text: however it is cut, a stream says what the whole answer says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AddedToken, AutoTokenizer

from osd.chat_template import Chat, tool_call
from osd.demo import TARGET
from osd.engine.detokenizer import Detokenizer
from osd.engine.text_stream import TextStream
from osd.server.core.messages import JobOutput
from osd.server.http.answer import Choice
from osd.server.http.answer_parts import CallDelta
from osd.server.http.tool_calls import FORMS, CallReader, ToolCallStream, detect, hidden_tokens, join_calls
from storage.records import Request
from tests.support import chat_templates as templates
from tests.support.chat_templates import template

END = 1
"""The end token of the tokenizer that ships with osd."""
NAMES = ("weather", "get_time", "f")
Call = tuple[str, Any]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.text('ab"\\{}[]<>é\n ', max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('ab"}', max_size=3), inner, max_size=3),
    max_leaves=5,
)
CALL = st.tuples(st.sampled_from(NAMES), st.dictionaries(st.text("xyz", min_size=1, max_size=3), JSON, max_size=3))
WORDS = st.text("abc<{ \n", max_size=12).filter(lambda text: not text.lstrip().startswith("{"))


def whole(form: str, text: str, **options: Any) -> tuple[str, list[Call]]:
    """Content and calls of a text that came at once."""
    return pieces(form, [text], **options)


def pieces(form: str, parts: list[str], **options: Any) -> tuple[str, list[Call]]:
    """Content and calls of a text that came in parts, put together as a client does."""
    stream = ToolCallStream(FORMS[form], NAMES, **options)
    said, deltas = "", list[CallDelta]()
    for i in range(len(parts) + 1):
        content, calls = stream.push(parts[i] if i < len(parts) else "", last=i == len(parts))
        said, deltas = said + content, deltas + calls
    seen: set[int] = set()
    for delta in deltas:
        assert (delta.index not in seen) == bool(delta.name and delta.id)  # named first, then arguments
        seen.add(delta.index)
    joined = join_calls(deltas)
    assert [call.index for call in joined] == list(range(len(joined)))
    return said, [(str(call.name), call.arguments) for call in joined]


def cut(text: str, places: list[int]) -> list[str]:
    """The text in parts."""
    ends = sorted({place % (len(text) + 1) for place in places})
    return [text[begin:end] for begin, end in zip([0, *ends], [*ends, len(text)], strict=True)]


def hermes(calls: list[Call]) -> str:
    return "\n".join(f"<tool_call>\n{written(call)}\n</tool_call>" for call in calls)


def llama(calls: list[Call]) -> str:
    return "; ".join(written(call, "parameters") for call in calls)


def tagged_llama(calls: list[Call]) -> str:
    return "<|python_tag|>" + llama(calls)


def mistral(calls: list[Call]) -> str:
    return f"[TOOL_CALLS] [{', '.join(map(written, calls))}]"


def new_mistral(calls: list[Call]) -> str:
    return "".join(f"[TOOL_CALLS]{name}{json.dumps(arguments)}" for name, arguments in calls)


def newest_mistral(calls: list[Call]) -> str:
    return "".join(f"[TOOL_CALLS]{name}[CALL_ID]abcde1234[ARGS]{json.dumps(arguments)}" for name, arguments in calls)


def written(call: Call, key: str = "arguments") -> str:
    return json.dumps({"name": call[0], key: call[1]})


WRITERS = {
    hermes: "hermes", llama: "llama3_json", tagged_llama: "llama3_json", mistral: "mistral", new_mistral: "mistral",
    newest_mistral: "mistral",
}  # fmt: skip


@pytest.mark.parametrize("write", WRITERS)
@given(before=WORDS, calls=st.lists(CALL, min_size=1, max_size=3), after=WORDS, places=st.lists(st.integers(0, 999)))
def test_calls_come_back(write: Any, before: str, calls: list[Call], after: str, places: list[int]) -> None:
    before = "" if write is llama else before
    content, found = pieces(WRITERS[write], cut(before + write(calls) + after, places))
    assert [(name, json.loads(arguments)) for name, arguments in found] == calls
    assert content == before.rstrip() + (after.lstrip() if after.strip() else "")


SCRAPS = [
    "<tool_call>", "</tool_call>", "<tool_", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>", "[", "]", ";",
    '{"name": "f", "arguments": ', '{"name": "g", "arguments": ', '{"arguments": {"a": "}"}, "name": "f"', '"', "\\",
    '{"name"', ": ", '"f"', ", ", '"parameters"', "{", "}", "f", "weather", " ", "\n", "é", '"id": "1", ',
]  # fmt: skip
SCRAPPED = st.lists(st.sampled_from(SCRAPS), max_size=14).map("".join)


@pytest.mark.parametrize("form", FORMS)
@given(text=SCRAPPED, places=st.lists(st.integers(0, 999)))
def test_a_stream_says_what_the_whole_says(form: str, text: str, places: list[int]) -> None:
    found = whole(form, text)
    assert pieces(form, cut(text, places)) == found == pieces(form, list(text))
    if not found[1]:
        assert found[0] == text


@pytest.mark.parametrize("form", FORMS)
@given(text=SCRAPPED)
def test_one_call_at_most_where_they_are_not_parallel(form: str, text: str) -> None:
    content, calls = whole(form, text)
    assert whole(form, text, parallel=False) == (content, calls[:1])


NO_CALLS = [
    "", "  \n", "Hello", "<tool_call>", "<tool_call>{}</tool_call>", '<tool_call>{"name": "nobody", "arguments": {}}',
    '<tool_call>{"name": "f", "arguments": 5}</tool_call>', '<tool_call>{"name": "f"}</tool_call>', '{"name": "f"}',
    '{"name": "f", "parameters": []}', '{"items": [1]}', "[TOOL_CALLS]", "[TOOL_CALLS] []", "[TOOL_CALLS]nobody{}",
    "<|python_tag|>print(1)", 'Say {"name": "f", "parameters": {}}',
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("text", NO_CALLS)
def test_what_is_no_call_is_content(form: str, text: str) -> None:
    assert pieces(form, list(text)) == (text, [])


def test_arguments_come_as_they_are_written() -> None:
    """A call that was cut off has what there was of it, and nothing is shown twice."""
    stream = ToolCallStream(FORMS["hermes"], NAMES)
    assert stream.push("Let me see.\n<tool") == ("Let me see.", [])
    assert stream.push('_call>{"name": "weather", "argu') == ("", [])
    content, (delta,) = stream.push('ments": {"city": "Par')
    assert (content, delta.name, delta.arguments) == ("", "weather", '{"city": "Par')
    assert stream.push("is") == ("", [CallDelta(0, "is")])
    assert stream.push("", last=True) == ("", [])


def test_a_name_is_the_longest_that_is_written() -> None:
    stream = ToolCallStream(FORMS["mistral"], ("f", "f_g", "f.h"))
    assert [call.name for call in stream.push('[TOOL_CALLS]f_g{}[TOOL_CALLS]f.h{"a": 1}', last=True)[1]] == [
        "f_g",
        "f.h",
    ]


@pytest.mark.parametrize("name", templates.FORMS)
def test_the_form_is_that_of_the_template(name: str) -> None:
    assert detect(template(templates.FORMS[name]), templates.tokenizer().all_special_tokens) == name.split(",")[0]


@pytest.mark.parametrize("source", [templates.XML, templates.BOTH, templates.DEAF, templates.USERS])
def test_no_form_is_guessed(source: str) -> None:
    assert detect(template(source), []) is None


@pytest.mark.parametrize("name", templates.FORMS)
def test_ids_are_those_that_the_template_takes(name: str) -> None:
    form = FORMS[name.split(",")[0]]
    call = tool_call("weather") | {"id": form.new_id()}
    assert "weather" in template(templates.FORMS[name]).render(
        Chat([{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [call]}])
    )


def special_tokenizer() -> Any:
    """A tokenizer to which all markers are special tokens, as [TOOL_CALLS] is to Mistral's."""
    made = AutoTokenizer.from_pretrained(TARGET)
    special = [*(marker for form in FORMS.values() for marker in form.markers), "<|other|>"]
    made.add_special_tokens({"additional_special_tokens": [AddedToken(text, special=True) for text in special]})
    return made


TOKENIZER = special_tokenizer()
SPECIAL = Detokenizer(TOKENIZER)


@pytest.mark.parametrize("write", WRITERS)
@given(calls=st.lists(CALL, min_size=1, max_size=2), sizes=st.lists(st.integers(1, 9), min_size=1))
def test_markers_may_be_special_tokens(write: Any, calls: list[Call], sizes: list[int]) -> None:
    """They are seen, and other special tokens are not; the end token ends the text."""
    form = FORMS[WRITERS[write]]
    hidden = hidden_tokens(form, SPECIAL.special)
    before = "" if write is llama else "So"
    tokens = [*TOKENIZER.encode(f"{before}{write(calls)}<|other|>", add_special_tokens=False), END]
    assert hidden and set(tokens) & hidden and TOKENIZER.convert_tokens_to_ids(form.markers[0]) not in hidden
    stream = TextStream(SPECIAL, Request((5,), skip_special_tokens=False), frozenset([END]), hidden)
    choice, deltas = Choice(stream, calls=CallReader(form, NAMES, True, hidden)), []
    while tokens:
        size = sizes[len(deltas) % len(sizes)]
        new, tokens = tuple(tokens[:size]), tokens[size:]
        deltas.append(choice.take(JobOutput(new, finish_reason=None if tokens else "stop")))
    assert "".join(delta.text for delta in deltas) == before and deltas[-1].finish_reason == "tool_calls"
    joined = join_calls(call for delta in deltas for call in delta.calls)
    assert [(call.name, json.loads(call.arguments)) for call in joined] == calls


def test_nothing_is_hidden_where_markers_are_text() -> None:
    assert all(hidden_tokens(form, {"<|end|>": 1}) is None for form in FORMS.values())
