"""Structured output over HTTP, and in the thread that decodes: what is asked for is written or refused by its name."""

from __future__ import annotations

import asyncio
import json
import random
import re
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jsonschema
import openai
import pytest
import torch
from transformers import AddedToken, PreTrainedTokenizerFast

from osd.engine.engine import Engine
from osd.server.core.client import EngineClient
from osd.server.core.engine_thread import EngineThread
from osd.server.core.grammars import GrammarQueue
from osd.server.core.messages import ClientJob, EngineJob, JobOutput
from osd.server.errors import ApiError
from osd.server.http.completions import CompletionBody
from osd.server.http.structured import grammar_of
from osd.server.http.tool_calls import CALL_FORMS, FORMS, ToolCallStream, tool_grammar
from osd.verification.grammar import GrammarCompiler, GrammarProcessor
from storage.errors import BadRequest
from storage.records import Request
from storage.sampling import Grammar
from tests.osd.server.conftest import Server
from tests.support.decoding import PROMPT, decoding, ended
from tests.support.grammars import END, FAMILIES, alone_with, grammar_pair, schema, tokenizer_of
from tests.support.models import alone
from tests.support.settings import settings_of

CHAT = [{"role": "user", "content": "Name a planet."}]
PLANET = {
    "type": "object", "properties": {"planet": {"enum": ["Mars", "Venus"]}, "moons": {"type": "integer", "maximum": 99,
    "minimum": 0}}, "required": ["planet", "moons"], "additionalProperties": False,
}  # fmt: skip
NAMED = {"type": "json_schema", "json_schema": {"name": "planet", "schema": PLANET, "strict": True}}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("temperature", [0, 1.2])
def test_an_answer_matches_its_schema(client: openai.OpenAI, temperature: float, stream: bool) -> None:
    made = client.chat.completions.create(
        model="target", messages=CHAT, response_format=NAMED, max_tokens=200, temperature=temperature, seed=3, n=2,
        stream=stream,
    )  # fmt: skip
    texts, ends = ["", ""], set()
    for chunk in made if stream else [made]:
        for choice in chunk.choices:
            texts[choice.index] += (choice.delta if stream else choice.message).content or ""
            ends.add(choice.finish_reason)
    assert ends - {None} == {"stop"}
    for text in texts:
        jsonschema.validate(json.loads(text), PLANET)


@pytest.mark.parametrize(("fields", "pattern"), [
    ({"guided_choice": ["yes", "no"]}, "yes|no"), ({"structured_outputs": {"regex": "[ab]{3}"}}, "[ab]{3}"),
    ({"guided_regex": "a{1,4}b"}, "a{1,4}b"), ({"structured_outputs": {"choice": ["x"], "regex": None}}, "x"),
    ({"guided_grammar": 'root ::= "a" | "b"'}, "a|b"), ({"structured_outputs": {"grammar": 'start: "a" /b?/'}}, "ab?"),
    ({"structured_outputs": {"json": json.dumps({"const": 7})}}, "7"), ({"guided_json": {"enum": [1, 2]}}, "1|2"),
])  # fmt: skip
def test_vllms_fields(server: Server, fields: dict[str, Any], pattern: str) -> None:
    answer = server.post("/v1/completions", {"prompt": "SELECT", "max_tokens": 60, "temperature": 0.5, **fields})
    [choice] = answer.json()["choices"]
    assert re.fullmatch(pattern, choice["text"]) and choice["finish_reason"] == "stop"


@pytest.mark.parametrize(("fields", "param"), [
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"not": {}}}}},
     "response_format.json_schema.schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}, "response_format.json_schema"),
    ({"response_format": {"type": "yaml"}}, "response_format"), ({"guided_json": "{"}, "guided_json"),
    ({"guided_json": "[]"}, "guided_json"), ({"guided_choice": []}, "guided_choice"),
    ({"structured_outputs": {"xml": "a"}}, "structured_outputs.xml"), ({"guided_regex": "("}, "guided_regex"),
    ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs.choice"),
    ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
    ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos"),
])  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_is_refused(server: Server, fields: dict[str, Any], param: str, stream: bool) -> None:
    answer = server.post("/v1/completions", {"prompt": "a", "stream": stream, **fields})
    assert answer.status_code == 400, answer.text
    assert str(answer.json()["error"]["param"]).startswith(param)


@pytest.mark.parametrize("fields", [
    {}, {"response_format": {"type": "text"}}, {"response_format": None}, {"structured_outputs": {}},
    {"structured_outputs": {"disable_any_whitespace": False, "structural_tag": None}}, {"guided_json": None},
])  # fmt: skip
def test_what_asks_for_nothing_is_no_grammar(fields: dict[str, Any]) -> None:
    assert grammar_of(CompletionBody(prompt="a", **fields)) is None


def job_of(count: int, **fields: Any) -> tuple[ClientJob, asyncio.Queue[JobOutput]]:
    inbox: asyncio.Queue[JobOutput] = asyncio.Queue()
    return ClientJob(Request(PROMPT, max_new_tokens=count, **fields), inbox.put_nowait), inbox


def tokens(pieces: Sequence[JobOutput]) -> list[int]:
    return [token for piece in pieces for token in piece.tokens]


def test_others_decode_while_a_thread_of_its_own_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """A schema of 1,000 keys is held in the compiler until another request has been answered."""
    pair, held, threads = grammar_pair(), threading.Event(), list[str]()
    compiled = GrammarCompiler._compile

    def compiling(self: GrammarCompiler, kind: str, text: str) -> Any:
        threads.append(threading.current_thread().name)
        assert held.wait(60)
        return compiled(self, kind, text)

    large = schema({
        "type": "object", "properties": {f"key_{i}": {"type": "boolean"} for i in range(1000)},
        "additionalProperties": False,
    })  # fmt: skip

    async def body(distant: EngineClient, thread: EngineThread) -> None:
        slow, slow_inbox = job_of(30, grammar=large)
        left, left_inbox = job_of(30, grammar=large)
        quick, quick_inbox = job_of(12)
        distant.submit([slow])
        distant.submit([left])
        distant.submit([quick])
        [eos] = pair.eos_ids
        assert tokens(await ended(quick_inbox)) == alone(pair.target.module, PROMPT, 12, eos)
        assert (thread.waiting, thread.running) == (2, 0)
        distant.end(left, ApiError(reason="enough"))
        assert (await ended(left_inbox))[-1].error is not None
        held.set()
        found = tokens(await ended(slow_inbox))
        assert len(threads) == 1 and threads[0].startswith("osd-grammar")
        assert found == alone_with(pair, PROMPT, 30, large)

    monkeypatch.setattr(GrammarCompiler, "_compile", compiling)
    decode(pair, body)


def test_a_grammar_that_is_none_is_told_and_ends_nothing() -> None:
    pair = grammar_pair()

    async def body(distant: EngineClient, thread: EngineThread) -> None:
        bad, inbox = job_of(9, grammar=Grammar("regex", "(", "guided_regex"))
        distant.submit([bad])
        error = (await ended(inbox))[-1].error
        assert error and (error.status, error.facts["param"]) == (400, "guided_regex")
        good, inbox = job_of(9, grammar=Grammar("choice", '["ab"]'))
        distant.submit([good])
        assert pair.tokenizer.decode(tokens(await ended(inbox)), skip_special_tokens=True) == "ab"

    decode(pair, body)


def decode(pair: Any, body: Any) -> None:
    engine = Engine(pair, settings_of(gamma__rule="fixed", serve__max_batch=2, serve__max_length=128))

    async def serve() -> None:
        async with decoding(engine, 8) as (distant, thread):
            await asyncio.wait_for(body(distant, thread), 120)

    asyncio.run(serve())


TOOLS = [
    ("get_näkö", {"type": "object", "properties": {"at": {"$ref": "#/$defs/place"}}, "required": ["at"],
     "additionalProperties": False, "$defs": {"place": {"enum": ["a b", 'q"']}}}),
    ("stop", {"type": "object", "properties": {}, "additionalProperties": False}),
]  # fmt: skip


def with_special(family: str, words: Sequence[str]) -> PreTrainedTokenizerFast:
    made = PreTrainedTokenizerFast(tokenizer_object=FAMILIES[family](), eos_token=END)
    made.add_special_tokens({"additional_special_tokens": [AddedToken(word, special=True) for word in words]})
    return made


@pytest.mark.parametrize("form", CALL_FORMS)
@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_calls_that_are_forced_are_calls_that_are_read(form: str, special: bool, family: str) -> None:
    tokenizer = with_special(family, list(CALL_FORMS[form].words.values())) if special else tokenizer_of(family)
    compiler, counts = GrammarCompiler(tokenizer, len(tokenizer), [tokenizer.eos_token_id]), set()
    for seed in range(6):
        many, rng, text = seed % 3 > 0, random.Random(seed), list[int]()
        processor = GrammarProcessor(compiler.compile(tool_grammar(TOOLS, form, tokenizer, many=many)), 0)
        while tokenizer.eos_token_id not in text:
            logits = torch.zeros(len(tokenizer))
            processor.apply(logits, text, [])
            good = torch.nonzero(logits == 0)[:, 0].tolist()
            ends = tokenizer.eos_token_id in good and rng.random() < 0.5
            text.append(tokenizer.eos_token_id if ends else rng.choice(good))
        stream = ToolCallStream(FORMS[form], tuple(name for name, _ in TOOLS))
        content, calls = stream.push(tokenizer.decode(text[:-1]), last=True)
        assert not content and (many or len(calls) == 1)
        for call in calls:
            jsonschema.validate(json.loads(call.arguments), dict(TOOLS)[call.name])
        counts.add(len(calls))
    assert 1 in counts and max(counts) > 1


def test_a_tools_schema_that_cannot_be_is_refused_by_its_field() -> None:
    tokenizer = tokenizer_of("byte_level")
    compiler = GrammarCompiler(tokenizer, len(tokenizer), [tokenizer.eos_token_id])
    with pytest.raises(BadRequest, match=r"^tools: .*not"):
        compiler.compile(tool_grammar([("a", {"not": {}})], "hermes", tokenizer, field="tools"))
    assert compiler.compile(replace(tool_grammar([("a", None)], "hermes", tokenizer), field="x"))


def test_a_grammar_that_is_compiled_between_two_looks_is_not_lost() -> None:
    class Late:
        """A compilation that is over by the second time that somebody asks."""

        asked = 0

        def done(self) -> bool:
            self.asked += 1
            return self.asked > 1

        def result(self) -> str:
            return "compiled"

    waiting, job = GrammarQueue(lambda _: Late()), EngineJob(Request(PROMPT))
    waiting.put(Grammar("regex", "a", "guided_regex"), [job])
    assert list(waiting.take()) == [] and len(waiting) == 1
    assert list(waiting.take()) == [([job], None)] and job.compiled == "compiled" and len(waiting) == 0
    waiting.put(Grammar("regex", "a", "guided_regex"), [job])
    assert waiting.remove(job) and [*waiting.take(), *waiting.take()] == [], "a call that has ended is nobody's"
