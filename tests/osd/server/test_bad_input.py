"""Every bad input has its status and OpenAI's shape, and leaves the server as it was."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from osd.server.http.chat_protocol import ChatBody
from osd.server.http.completions import CompletionBody
from osd.server.http.neutral import IGNORED, NEUTRAL
from osd.server.http.protocol import SamplingBody
from tests.osd.server.conftest import Server
from tests.support.waiting import PATIENCE

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]
TOOL = {"type": "function", "function": {"name": "f"}}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def text(**fields: Any) -> dict[str, Any]:
    return {"prompt": "Hello", "max_tokens": 2, **fields}


def chat(**fields: Any) -> dict[str, Any]:
    return {"messages": HELLO, "max_tokens": 2, **fields}


BAD: dict[str, tuple[str, Any, int, str | None, str | None]] = {
    # name: path, body, status, code, param
    "not json": (TEXT, b'{"prompt": ', 400, "invalid_json", None),
    "not utf-8": (TEXT, b'{"prompt": "\xff\xfe"}', 400, "invalid_json", None),
    "nothing": (TEXT, b"", 400, "invalid_value", None),
    "a list": (TEXT, b"[]", 400, "invalid_value", None),
    "deep": (TEXT, b"[" * 100_000, 400, "invalid_json", None),
    "half a surrogate": (TEXT, b'{"prompt": "\\ud800"}', 400, "invalid_value", None),
    "no prompt": (TEXT, {}, 400, "invalid_value", "prompt"),
    "an empty prompt": (TEXT, text(prompt=""), 400, None, "prompt"),
    "no prompts": (TEXT, text(prompt=[]), 400, None, "prompt"),
    "a number for a prompt": (TEXT, text(prompt=5), 400, "invalid_value", "prompt"),
    "a token that is none": (TEXT, text(prompt=[999_999]), 400, None, "prompt"),
    "no messages": (CHAT, chat(messages=[]), 400, "invalid_value", "messages"),
    "a role that is none": (CHAT, chat(messages=[{"role": "king", "content": ""}]), 400, "invalid_value", "messages.0"),
    "an image": (CHAT, chat(messages=[{"role": "user", "content": [{"type": "image_url"}]}]), 400,
                 "unsupported_parameter", "messages.0.content.image_url"),
    "hot": (TEXT, text(temperature=2.5), 400, "invalid_value", "temperature"),
    "temperature in words": (TEXT, text(temperature="warm"), 400, "invalid_value", "temperature"),
    "NaN": (TEXT, b'{"prompt": "a", "temperature": NaN}', 400, "invalid_value", "temperature"),
    "top_p 0": (TEXT, text(top_p=0), 400, "invalid_value", "top_p"),
    "top_k -5": (TEXT, text(top_k=-5), 400, "invalid_value", "top_k"),
    "max_tokens 0": (TEXT, text(max_tokens=0), 400, "invalid_value", "max_tokens"),
    "n 0": (TEXT, text(n=0), 400, "invalid_value", "n"),
    "n too large": (TEXT, text(n=5), 400, None, "n"),
    "too many stop strings": (TEXT, text(stop=list("abcde")), 400, None, "stop"),
    "an empty stop string": (TEXT, text(stop=[""]), 400, None, "stop"),
    "too many logprobs": (TEXT, text(logprobs=21), 400, None, "logprobs"),
    "top_logprobs alone": (CHAT, chat(top_logprobs=2), 400, None, "top_logprobs"),
    "an unknown model": (TEXT, text(model="gpt-4"), 404, "model_not_found", "model"),
    "a long prompt": (TEXT, text(prompt="word " * 2000), 400, "context_length_exceeded", "prompt"),
    "a long chat": (CHAT, chat(messages=[{"role": "user", "content": "word " * 2000}]), 400, "context_length_exceeded",
                    "messages"),
    "a long answer": (TEXT, text(max_tokens=100_000), 400, "context_length_exceeded", "prompt"),
    "a parameter that osd lacks": (TEXT, text(length_penalty=2), 400, "unsupported_parameter", "length_penalty"),
    "a penalty out of range": (TEXT, text(presence_penalty=2.5), 400, "invalid_value", "presence_penalty"),
    "a penalty of 0": (TEXT, text(repetition_penalty=0), 400, "invalid_value", "repetition_penalty"),
    "min_p 2": (TEXT, text(min_p=2), 400, "invalid_value", "min_p"),
    "a bias of no token": (TEXT, text(logit_bias={"999999": 1}), 400, None, "logit_bias"),
    "a bias in words": (TEXT, text(logit_bias={"a": 1}), 400, "invalid_value", "logit_bias"),
    "a bias that is too large": (TEXT, text(logit_bias={"3": 101}), 400, "invalid_value", "logit_bias"),
    "no token allowed": (TEXT, text(allowed_token_ids=[]), 400, None, "allowed_token_ids"),
    "a stop token that is none": (TEXT, text(stop_token_ids=[999_999]), 400, None, "stop_token_ids"),
    "more at least than at most": (TEXT, text(max_tokens=4, min_tokens=5), 400, None, "min_tokens"),
    "an empty bad word": (TEXT, text(bad_words=[" "]), 400, None, "bad_words"),
    "a tool without a function": (CHAT, chat(tools=[{"type": "function"}]), 400, "invalid_value", "tools.0"),
    "tools that its template does not show": (CHAT, chat(tools=[TOOL]), 400, None, "tools"),
    "a call that its template does not show": (CHAT, chat(messages=[{"role": "assistant", "tool_calls": [CALL]}]), 400,
                                               None, "messages.0.tool_calls"),
    "a call of no object": (CHAT, chat(messages=[{"role": "assistant", "tool_calls": [
        {"function": {"name": "f", "arguments": "[1]"}}]}]), 400, "invalid_value", "messages.0.tool_calls.0"),
    "a call without tools": (CHAT, chat(tool_choice="required"), 400, "unsupported_parameter", "tool_choice"),
    "a name that its template does not show": (CHAT, chat(messages=[HELLO[0] | {"name": "Ada"}]), 400, None,
                                               "messages.0.name"),
    "a variable that its template lacks": (CHAT, chat(chat_template_kwargs={"enable_thinking": False}), 400, None,
                                           "chat_template_kwargs.enable_thinking"),
    "a field that its template lacks": (CHAT, chat(messages=[HELLO[0] | {"mood": "good"}]), 400, None,
                                        "messages.0.mood"),
    "effort that its template lacks": (CHAT, chat(reasoning_effort="high"), 400, "unsupported_parameter",
                                       "reasoning_effort"),
    "a message both continued and begun": (CHAT, chat(continue_final_message=True), 400, "invalid_value",
                                           "continue_final_message"),
    "a template of its own": (CHAT, chat(chat_template="{{ messages }}"), 400, "unsupported_parameter",
                              "chat_template"),
    "a misspelt parameter": (TEXT, text(max_token=5), 400, "unknown_parameter", "max_token"),
    "an unknown route": (TEXT, text(osd={"route": "nowhere"}), 400, "unknown_route", "osd.route"),
    "gamma too large": (TEXT, text(osd={"gamma": 99}), 400, None, "osd.gamma"),
    "an unknown field of osd": (TEXT, text(osd={"gama": 1}), 400, "invalid_value", "osd.gama"),
    "both": ("/tokenize", {"prompt": "a", "messages": HELLO}, 400, None, "prompt"),
    "no such token": ("/detokenize", {"tokens": [6144]}, 400, None, "tokens"),
    "no such path": ("/v1/images", {}, 404, "not_found", None),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_it_is_refused(server: Server, name: str) -> None:
    path, body, status, code, param = BAD[name]
    answer = server.post(path, body)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"]
    assert error["code"] == code and error["type"] == "invalid_request_error"
    assert error["param"] == param or str(error["param"]).startswith(f"{param}.")


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_large(server: Server, chunked: bool) -> None:
    body = json.dumps(text(prompt="x" * (1 << 20))).encode()
    pieces = (body[i : i + 65536] for i in range(0, len(body), 65536))
    headers = {"content-type": "application/json"}
    answer = httpx.post(server.url + TEXT, content=pieces if chunked else body, headers=headers, timeout=PATIENCE)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")


@pytest.mark.parametrize(
    ("header", "value"), [("X-OSD-Gamma", "many"), ("X-OSD-Learn", "perhaps"), ("X-OSD-Deadline-Ms", "0")]
)
def test_a_header_that_means_nothing(server: Server, header: str, value: str) -> None:
    answer = server.post(TEXT, text(), headers={header: value})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, header)


def test_a_wrong_method(server: Server) -> None:
    answer = httpx.get(server.url + TEXT, timeout=PATIENCE)
    assert (answer.status_code, answer.json()["error"]["code"]) == (405, "method_not_allowed")


NOTHING = dict(NEUTRAL.items()) | dict.fromkeys(IGNORED, ())


@pytest.mark.parametrize(("path", "kind", "make"), [(TEXT, CompletionBody, text), (CHAT, ChatBody, chat)])
def test_fields_that_ask_for_nothing_are_taken(server: Server, path: str, kind: type[SamplingBody], make: Any) -> None:
    """Null, and every neutral value, of every field that OpenAI or vLLM has."""
    kept = {name for name, field in kind.model_fields.items() if field.is_required()} | {"max_tokens"}
    nulls = dict.fromkeys((NOTHING.keys() | kind.model_fields.keys()) - kept)
    bodies = [nulls, {name: values[0] for name, values in NOTHING.items() if values}]
    for name, values in NOTHING.items():
        for value in values:
            kind.model_validate(make(**{name: value}))
    for body in bodies:
        answer = server.post(path, make(**{**body, "stream": False}))
        assert answer.status_code == 200, answer.text


def test_each_limit_is_named(server: Server) -> None:
    """n has one limit and all requests of a call together another."""
    for body, param, name in (
        (text(n=5), "n", "server.max_choices"),
        (text(prompt=["a"] * 300), "prompt", "server.queue"),
        (text(prompt=["a"] * 100, n=3), "prompt", "server.queue"),
        (text(logprobs=21), "logprobs", "server.max_logprobs"),
        (chat(logprobs=True, top_logprobs=21), "top_logprobs", "server.max_logprobs"),
    ):
        error = server.post(CHAT if "messages" in body else TEXT, body).json()["error"]
        assert error["param"] == param and name in error["message"] and error["message"].startswith(param)


def test_a_foreign_name_for_this_machine_is_refused(server: Server) -> None:
    """A web page whose name leads to 127.0.0.1 cannot use a server without keys, nor can it send it forms."""
    answer = httpx.get(server.url + "/v1/models", headers={"host": "evil.example"}, timeout=PATIENCE)
    assert answer.status_code == 403
    for url in (server.admin_url + "/admin/drafts/promote", server.url + TEXT):
        form = httpx.post(url, data={"version": "x"}, timeout=PATIENCE)
        assert (form.status_code, form.json()["error"]["code"]) == (400, "unsupported_media_type")
    for kind in ("text/json", "application/x-ndjson", "text/plain; x=json"):
        other = httpx.post(
            server.url + TEXT, content='{"prompt": "a"}', headers={"content-type": kind}, timeout=PATIENCE
        )
        assert (other.status_code, other.json()["error"]["code"]) == (400, "unsupported_media_type")
    asked = {"origin": "https://evil.example", "access-control-request-method": "POST"}
    preflight = httpx.options(server.url + TEXT, headers=asked, timeout=PATIENCE)
    assert "access-control-allow-origin" not in preflight.headers


def test_no_word_of_a_prompt_is_in_the_log(server: Server) -> None:
    server.post(TEXT, text(prompt="xylophonist " * 3))
    server.post(TEXT, text(prompt="xylophonist " * 5000))
    server.post(TEXT, b'{"prompt": "xylophonist')
    assert "xylophonist" not in server.log and "Traceback" not in server.log
    assert "POST /v1/completions 200" in server.log
