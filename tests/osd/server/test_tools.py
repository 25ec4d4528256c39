"""Tools through the official client: a model that says what it is told to, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from osd.chat_template import Chat
from tests.osd.server.conftest import Server, serving
from tests.support import chat_templates as templates
from tests.support import scripted

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
    target = scripted.written(folder / "target", scripted.scripted(script, len(tokenizer), end=1))
    template = templates.written(folder, templates.HERMES)
    with serving(
        folder / "server", "--target", target, "--drafter", "lookup", OSD_SERVER__CHAT_TEMPLATE=template
    ) as made:
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


def test_a_call_cannot_be_forced(client: openai.OpenAI) -> None:
    for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
        with pytest.raises(openai.BadRequestError) as caught:
            ask(client, "one", stream=False, tool_choice=choice)
        assert caught.value.param == "tool_choice"
