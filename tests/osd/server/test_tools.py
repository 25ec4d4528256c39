"""Tools through the official client: a model that says what it is told to, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from osd.chat_template import Chat, ChatTemplate
from tests.osd.server.conftest import Server, serving
from tests.osd.server.test_tool_calls import special_tokenizer
from tests.support import chat_templates as templates
from tests.support import scripted
from tests.support.waiting import PATIENCE, until

TOOLS: Any = [{"type": "function", "function": {
    "name": "weather", "description": "The weather somewhere",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}}]  # fmt: skip


def call(city: str, name: str = "weather") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{"city": "{city}"}}}}\n</tool_call>'


SAID = {
    "one": call("Paris"),
    "two": f"Both.\n{call('Paris')}\n{call('Rome')}",
    "nobody": f"So: {call('Paris', 'nobody')}",
    "text": "It rains. <tool",
}
WANTED: dict[str, tuple[str | None, list[str]]] = {
    "one": (None, ["Paris"]),
    "two": ("Both.", ["Paris", "Rome"]),
    "nobody": (SAID["nobody"], []),
    "text": (SAID["text"], []),
}
"""Content, and the cities that are asked for."""


def question(name: str) -> Any:
    """A question as long as its answer's place wants it."""
    return [{"role": "user", "content": "word " * 150 * list(SAID).index(name) + name}]


def prompt(name: str, **fields: Any) -> str:
    return templates.template(templates.HERMES).render(Chat(question(name), tools=TOOLS, **fields))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server of that model, with a template of its own."""
    folder, tokenizer = tmp_path_factory.mktemp("tools"), templates.tokenizer()

    def tokens(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False))

    script = {len(tokens(prompt(name))): [*tokens(said), 1] for name, said in SAID.items()}
    target = scripted.written(folder / "target", scripted.scripted(script, len(tokenizer), end=1), tokenizer)
    template = templates.written(folder, templates.HERMES)
    variables = {"OSD_SERVER__CHAT_TEMPLATE": template, "OSD_STORAGE__FLUSH_SECONDS": "0.1"}
    with serving(folder / "server", "--target", target, "--drafter", "lookup", **variables) as made:
        yield made


@pytest.fixture(scope="module")
def client(served: Server) -> Iterator[openai.OpenAI]:
    with served.client() as made:
        yield made


def ask(client: openai.OpenAI, name: str, *, stream: bool, **options: Any) -> tuple[str | None, list[Any], str]:
    """Content, calls and the finish reason of an answer, put together as clients do."""
    asked = {
        "model": "target",
        "messages": question(name),
        "tools": TOOLS,
        "temperature": 0,
        "max_tokens": 120,
        **options,
    }
    made: Any = client.chat.completions.create(**asked, stream=stream)
    if not stream:
        choice = made.choices[0]
        return choice.message.content, choice.message.tool_calls or [], choice.finish_reason
    content, calls, reason = "", [], ""
    for chunk in made:
        delta, reason = chunk.choices[0].delta, chunk.choices[0].finish_reason or reason
        content += delta.content or ""
        for part in delta.tool_calls or []:
            if part.index == len(calls):
                assert part.id and part.type == "function" and part.function.name
                calls.append(part)
            else:
                assert part.id is part.function.name is None
                calls[part.index].function.arguments += part.function.arguments
    return content or None, calls, reason


def test_a_target_alone_serves_keeps_and_is_listed(served: Server) -> None:
    asked = {"prompt": "SELECT all users", "max_tokens": 24, "temperature": 0, "ignore_eos": True}
    with served.store() as store:
        before = len(store.samples.recent(limit=99))
        first, second = (served.post("/v1/completions", asked).json() for _ in range(2))
        assert first["choices"][0]["text"] == second["choices"][0]["text"] and first["usage"]["completion_tokens"] == 24
        listed = served.get("/admin/servers").json()
        assert listed["serving"] == [] and [each["drafts"] for each in listed["servers"]] == [[]], listed
        assert served.get("/metrics").status_code == served.get("/admin/drafts").status_code == 200
        until(lambda: len(store.samples.recent(limit=99)) == before + 2, "both are kept")
        assert store.versions.list() == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", SAID)
def test_calls_and_content(client: openai.OpenAI, name: str, stream: bool) -> None:
    content, calls, reason = ask(client, name, stream=stream)
    assert (content, [json.loads(one.function.arguments)["city"] for one in calls]) == WANTED[name]
    assert all(one.function.name == "weather" and one.id for one in calls)
    assert len({one.id for one in calls}) == len(calls)
    assert reason == ("tool_calls" if calls else "stop")


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_asked_of_calls(client: openai.OpenAI, stream: bool) -> None:
    _, calls, _ = ask(client, "two", stream=stream, parallel_tool_calls=False)
    assert [one.function.arguments for one in calls] == ['{"city": "Paris"}']
    assert ask(client, "two", stream=stream, tool_choice="none") == (SAID["two"], [], "stop")
    content, calls, reason = ask(client, "one", stream=stream, max_tokens=22)
    assert (content, reason) == (None, "length") and '{"city": "Paris"}'.startswith(calls[0].function.arguments)


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_scored_are_all_that_came(client: openai.OpenAI, stream: bool) -> None:
    asked = {"model": "target", "messages": question("one"), "tools": TOOLS, "temperature": 0, "logprobs": True}
    made: Any = client.chat.completions.create(**asked, stream=stream)
    choices = [chunk.choices[0] for chunk in made] if stream else [made.choices[0]]
    entries = [entry for choice in choices if choice.logprobs for entry in choice.logprobs.content]
    assert "".join(entry.token for entry in entries).startswith(SAID["one"])


def test_an_answer_goes_back_into_the_chat(served: Server, client: openai.OpenAI) -> None:
    """As the client's own object says it, with all its nulls, and what the tool said."""
    made = client.chat.completions.create(model="target", messages=question("two"), tools=TOOLS, temperature=0)
    answer = made.choices[0].message
    calls = answer.tool_calls or []
    results = [{"role": "tool", "tool_call_id": one.id, "content": f"Rain in {i}"} for i, one in enumerate(calls)]
    chat: Any = [*question("two"), answer.model_dump(), *results]
    shown = tokenized(served, messages=chat, tools=TOOLS)
    for text in ("Both.", call("Paris"), call("Rome"), "Rain in 0", "Rain in 1", "The weather somewhere"):
        assert text in shown
    assert client.chat.completions.create(model="target", messages=chat, tools=TOOLS, max_tokens=1)


def tokenized(served: Server, **body: Any) -> str:
    """What the model reads."""
    tokens = served.post("/tokenize", body).json()["tokens"]
    return str(served.post("/detokenize", {"tokens": tokens}).json()["prompt"])


def test_a_chats_fields_do_what_they_say(served: Server) -> None:
    chat = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "I say"}]}
    whole = tokenized(served, **chat)
    assert whole.endswith("I say\n<|assistant|>\n")
    assert tokenized(served, **chat, add_generation_prompt=False).endswith("I say\n")
    assert tokenized(served, **chat, add_generation_prompt=False, continue_final_message=True).endswith("I say")
    for thinking in ({"chat_template_kwargs": {"enable_thinking": False}}, {"reasoning_effort": "none"}):
        assert tokenized(served, **chat, **thinking) == f"{whole}<think>\n\n</think>\n\n"
    assert tokenized(served, **chat, reasoning_effort="high") == whole
    said = chat["messages"][1] | {"reasoning_content": "Hm"}
    assert "<think>Hm</think>" in tokenized(served, messages=[chat["messages"][0], said])


CITIES = ["Paris", 'New "York"', "Jyväskylä"]
STRICT: Any = [
    {"type": "function", "function": {"name": name, "description": "Of a city", "strict": True, "parameters": {
        "type": "object", "properties": {key: {"enum": CITIES}}, "required": [key], "additionalProperties": False,
    }}}
    for name, key in (("weather", "city"), ("time", "place"))
]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "sampling", [{"temperature": 0}, {"temperature": 1.0, "seed": 3}, {"temperature": 1.0, "seed": 4}]
)
def test_a_call_can_be_forced(client: openai.OpenAI, sampling: dict[str, Any], stream: bool) -> None:
    """Whatever the model would say."""
    named = {"type": "function", "function": {"name": "time"}}
    for choice, count in (("required", None), (named, 1)):
        asked = {"tools": STRICT, "tool_choice": choice, **sampling}
        content, calls, reason = ask(client, "text", stream=stream, **asked)
        assert content is None and calls and reason == "tool_calls" and count in (None, len(calls))
        for one in calls:
            key = {"weather": "city", "time": "place"}[one.function.name]
            assert choice == "required" or one.function.name == "time"
            assert json.loads(one.function.arguments)[key] in CITIES


def test_what_cannot_be_forced_is_refused(client: openai.OpenAI) -> None:
    nobody = {"type": "function", "function": {"name": "nobody"}}
    schema = {"type": "object", "properties": {"a": {"not": {}}}, "required": ["a"]}
    impossible = [{"type": "function", "function": {"name": "f", "description": "", "parameters": schema}}]
    for options, param in (
        ({"tool_choice": nobody}, "tool_choice"),
        ({"tools": STRICT}, "tools.0.function.strict"),
        ({"tool_choice": "required", "response_format": {"type": "json_object"}}, "response_format"),
        ({"tool_choice": "required", "tools": impossible}, "tools"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            ask(client, "one", stream=False, **options)
        assert caught.value.param == param


@pytest.mark.long
@pytest.mark.parametrize("stream", [False, True])
def test_the_marker_may_be_a_special_token(tmp_path: Path, stream: bool) -> None:
    """As Mistral's is, which no text shows."""
    tokenizer = special_tokenizer()
    said = tokenizer.encode('[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Paris"}}]<|other|>')
    chat = Chat(question("one"), tools=TOOLS)
    before = tokenizer.encode(ChatTemplate(tokenizer, templates.MISTRAL).render(chat), add_special_tokens=False)
    script = {len(before): [*said[said[0] == tokenizer.bos_token_id :], 1]}
    target = scripted.written(tmp_path / "target", scripted.scripted(script, len(tokenizer), end=1), tokenizer)
    template = templates.written(tmp_path, templates.MISTRAL)
    options = ("--target", target, "--drafter", "lookup")
    with (
        serving(tmp_path / "server", *options, OSD_SERVER__CHAT_TEMPLATE=template) as served,
        served.client() as client,
    ):
        forced = {"tool_choice": "required", "tools": STRICT[:1], "parallel_tool_calls": False, "max_tokens": 300}
        for asked in ({}, forced):
            content, calls, reason = ask(client, "one", stream=stream, **asked)
            assert (content, reason) == (None, "tool_calls")
            assert json.loads(calls[0].function.arguments)["city"] in CITIES and len(calls[0].id) == 9


WORD = st.text("abcdefgh", min_size=4, max_size=8)
VALUES = (
    st.none() | st.booleans() | st.integers(-3, 3) | WORD | st.lists(WORD, max_size=2)
    | st.dictionaries(WORD, WORD, max_size=2)
)  # fmt: skip


def mostly(good: st.SearchStrategy[Any], bad: st.SearchStrategy[Any] = VALUES) -> st.SearchStrategy[Any]:
    return st.integers(0, 14).flatmap(lambda n: bad if n == 0 else good)


def fields(required: dict[str, Any], **optional: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(required, optional=optional)


PART = mostly(
    fields({"type": st.just("text"), "text": WORD}),
    st.sampled_from([{"type": "image_url", "image_url": {"url": "x"}}, {"type": "text"}, "a", {}]),
)
FUNCTION = fields({"name": WORD, "arguments": mostly(st.dictionaries(WORD, WORD).map(json.dumps))})
CALL = fields({"function": FUNCTION}, id=WORD, type=mostly(st.just("function")))
SAYING = fields(
    {"role": mostly(st.sampled_from(["system", "developer", "user", "assistant"]))},
    content=mostly(WORD | st.lists(PART, max_size=3)), name=st.none(),
    **{name: mostly(st.sampled_from([None, "", []])) for name in ("refusal", "audio", "mood", "function_call")},
)  # fmt: skip
REASONING = fields(
    {"role": st.just("assistant"), "content": WORD}, reasoning_content=mostly(WORD), name=mostly(st.none())
)
CALLING = fields({"role": st.just("assistant"), "tool_calls": mostly(st.lists(CALL, max_size=2))}, content=WORD)
RESULT = fields({"role": st.sampled_from(["tool", "function"]), "content": WORD}, name=WORD, tool_call_id=WORD)
MESSAGE = SAYING | REASONING | CALLING | RESULT
TOOL = fields({"type": mostly(st.just("function")), "function": mostly(fields(
    {"name": WORD}, description=WORD, parameters=mostly(st.just({"type": "object", "properties": {}})),
    strict=st.just(False),
))})  # fmt: skip
BODY = fields(
    {"messages": mostly(st.lists(MESSAGE, min_size=1, max_size=4), WORD | st.just([]))},
    tools=mostly(st.lists(TOOL, max_size=2)),
    chat_template_kwargs=mostly(fields({}, enable_thinking=VALUES, bos_token=mostly(st.nothing() | WORD))),
    add_generation_prompt=mostly(st.booleans()), continue_final_message=mostly(st.just(False)),
    add_special_tokens=mostly(st.booleans()), reasoning_effort=mostly(st.sampled_from(["none", "high"])),
    documents=mostly(st.just([])), chat_template=mostly(st.none()),
)  # fmt: skip
CHOICE = fields(
    {}, tool_choice=mostly(st.sampled_from(["none", "auto"])), parallel_tool_calls=mostly(st.booleans()),
    stream=st.booleans(),
)  # fmt: skip


def said(value: Any) -> Iterator[str]:
    """The words of a part of a body."""
    if isinstance(value, str):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from said(inner)


def told(message: dict[str, Any]) -> Iterator[str]:
    """The words of a message that its prompt must have."""
    yield from said([part["text"] if isinstance(part, dict) else part for part in message.get("content") or []])
    yield from said([call["function"]["name"] for call in message.get("tool_calls") or []])
    if message["role"] not in ("tool", "function"):
        yield from said(message.get("name"))
    for call in message.get("tool_calls") or []:
        arguments = call["function"]["arguments"] or "{}"
        yield from said(json.loads(arguments) if isinstance(arguments, str) else arguments)


def bodies(served: Server, examples: int) -> None:
    """What is accepted says all that it was given; what is refused is a field that the body has."""
    with httpx.Client(base_url=served.url, timeout=PATIENCE) as http:

        @settings(max_examples=examples, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
        @given(body=BODY, choice=CHOICE)
        def check(body: dict[str, Any], choice: dict[str, Any]) -> None:
            read = http.post("/tokenize", json=body)
            asked = http.post("/v1/chat/completions", json={**body, **choice, "max_tokens": 1})
            assert {read.status_code, asked.status_code} <= {200, 400}, asked.text
            if read.status_code == 400:
                assert asked.status_code == 400 and read.json()["error"]["param"].split(".")[0] in body, read.text
                return
            shown = http.post("/detokenize", json={"tokens": read.json()["tokens"]}).json()["prompt"]
            for message in body["messages"]:
                assert all(word in shown for word in told(message)), shown
            for tool in body.get("tools") or []:
                assert all(word in shown for word in said(tool)), shown

        check()


def test_a_few_bodies(served: Server) -> None:
    bodies(served, 60)


@pytest.mark.long
def test_many_bodies(served: Server) -> None:
    bodies(served, 5000)
