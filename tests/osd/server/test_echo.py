"""A prompt in its answer, over HTTP: echo, and vLLM's prompt_logprobs, whole and in streams."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from osd.demo import TARGET
from osd.engine.detokenizer import Detokenizer
from osd.models.pair import Pair, load_tokenizer
from osd.server.http.answer_parts import prompt_offsets
from tests.osd.server.conftest import Server
from tests.osd.server.test_openai_client import PROMPTS, Plain, framed

CHAT = [{"role": "user", "content": "Name a planet."}]
LONG = "SELECT näköä FROM 日本語 WHERE 🎈 = 'x'; " * 9 + PROMPTS[0]


def ask(server: Server, path: str, stream: bool, **fields: Any) -> list[dict[str, Any]]:
    """The whole answer alone, or its chunks."""
    answer = server.post(path, {"temperature": 0, "stream": stream, **fields})
    assert answer.status_code == 200, answer.text
    if not stream:
        return [answer.json()]
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]


def joined(parts: list[dict[str, Any]]) -> tuple[str, dict[str, list[Any]]]:
    """Text and log-probabilities of the first choice."""
    choices = [part["choices"][0] for part in parts]
    scored = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    return "".join(choice["text"] for choice in choices), {
        name: [value for one in scored for value in one[name]] for name in scored[0]
    } if scored else {}


def reference(pair: Pair, tokens: list[int]) -> torch.Tensor:
    """(P − 1, V) the log-probabilities at each token but the first, from one plain pass."""
    with torch.inference_mode():
        logits = pair.target.module(input_ids=torch.tensor([tokens]), use_cache=False).logits
    return logits[0, :-1].float().log_softmax(-1)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("as_ids", [False, True])
@pytest.mark.parametrize("count", [0, 1, 6])
def test_an_echo_is_prompt_and_answer_with_their_logprobs(
    server: Server, pair: Pair, plain: Plain, stream: bool, as_ids: bool, count: int
) -> None:
    tokens = pair.tokenizer.encode(LONG)
    asked = dict(prompt=tokens if as_ids else LONG, max_tokens=count, echo=True, logprobs=2)
    text, found = joined(ask(server, "/v1/completions", stream, **asked))
    assert text == LONG + (plain(LONG, count) if count else "")
    wanted = reference(pair, tokens)
    assert found["token_logprobs"][0] is None and found["top_logprobs"][0] is None
    own = wanted.gather(1, torch.tensor(tokens[1:])[:, None])[:, 0].tolist()
    assert found["token_logprobs"][1 : len(tokens)] == pytest.approx(own, abs=2e-3)
    for one, best in zip(found["top_logprobs"][1 : len(tokens)], wanted.topk(2).values.tolist(), strict=True):
        assert max(one.values()) == pytest.approx(best[0], abs=2e-3)
    assert 0 <= len(found["tokens"]) - len(tokens) <= count  # an end token may come before
    for word, offset in zip(found["tokens"], found["text_offset"], strict=True):
        assert "\ufffd" in word or text[offset:].startswith(word.removesuffix("<|end|>"))


@pytest.mark.parametrize("stream", [False, True])
def test_an_echo_without_logprobs_and_of_several_prompts(server: Server, plain: Plain, stream: bool) -> None:
    parts = ask(server, "/v1/completions", stream, prompt=PROMPTS[:2], n=2, max_tokens=8, echo=True)
    texts = ["".join(c["text"] for part in parts for c in part["choices"] if c["index"] == i) for i in range(4)]
    assert texts == [prompt + plain(prompt, 8) for prompt in PROMPTS[:2] for _ in range(2)]
    assert all(c["logprobs"] is None for part in parts for c in part["choices"])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("top", [0, 3])
def test_prompt_logprobs_in_vllms_form(server: Server, pair: Pair, stream: bool, top: int) -> None:
    for path, asked in (
        ("/v1/completions", {"prompt": PROMPTS[0], "max_tokens": 0}),
        ("/v1/chat/completions", {"messages": CHAT, "max_tokens": 3}),
    ):
        first = ask(server, path, stream, prompt_logprobs=top, **asked)[0]
        found = first["prompt_logprobs"] if "chat" in path else first["choices"][0]["prompt_logprobs"]
        text = framed(pair, CHAT[0]["content"]) if "chat" in path else PROMPTS[0]
        tokens = pair.tokenizer.encode(text, add_special_tokens="chat" not in path)
        wanted = reference(pair, tokens)
        assert found[0] is None and len(found) == len(tokens)
        for one, token, line in zip(found[1:], tokens[1:], wanted, strict=True):
            assert next(iter(one)) == str(token) and len(one) in (top, top + 1)
            for name, entry in one.items():
                assert entry["logprob"] == pytest.approx(float(line[int(name)]), abs=2e-3)
                assert entry["decoded_token"] == pair.tokenizer.decode([int(name)])
            ranks = sorted(entry["rank"] for entry in one.values())
            assert ranks[:top] == list(range(1, top + 1)) and one[str(token)]["rank"] >= 1


def test_an_evaluation_harness_reads_it(server: Server, pair: Pair) -> None:
    """What lm-eval's local-completions sends, and how it reads the answer."""
    contexts, rest = PROMPTS[:2], [" users WHERE", " return"]
    whole = [pair.tokenizer.encode(a + b) for a, b in zip(contexts, rest, strict=True)]
    body = {"model": "target", "prompt": whole, "temperature": 0, "logprobs": 1, "seed": 1234, "echo": True}
    for most in (0, 1):
        out = server.post("/v1/completions", {**body, "max_tokens": most}).json()
        for choice, context, tokens in zip(out["choices"], contexts, whole, strict=True):
            begin, end = len(pair.tokenizer.encode(context)), len(tokens)
            logprobs = choice["logprobs"]["token_logprobs"][begin:end]
            own = reference(pair, tokens).gather(1, torch.tensor(tokens[1:])[:, None])[begin - 1 :, 0]
            assert sum(logprobs) == pytest.approx(float(own.sum()), abs=5e-3)
            greedy = [max(top.values()) == one for one, top in zip(
                logprobs, choice["logprobs"]["top_logprobs"][begin:end], strict=True)]  # fmt: skip
            best = reference(pair, tokens).argmax(-1)[begin - 1 :].tolist()
            assert greedy == [a == b for a, b in zip(best, tokens[begin:], strict=True)]


@pytest.mark.parametrize(("body", "param"), [
    ({"prompt": "a", "max_tokens": 0}, "max_tokens"), ({"prompt": "a", "max_tokens": 0, "logprobs": 1}, "max_tokens"),
    ({"prompt": "a", "prompt_logprobs": 99}, "prompt_logprobs"), ({"prompt": "a", "echo": "yes!"}, "echo"),
    ({"prompt": "a", "prompt_logprobs": -1}, "prompt_logprobs"),
    ({"prompt": "word " * 2000, "echo": True, "max_tokens": 0}, "prompt"),
])  # fmt: skip
def test_what_cannot_be_is_refused(server: Server, body: dict[str, Any], param: str) -> None:
    answer = server.post("/v1/completions", body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


def test_offsets_behind_what_the_tokenizer_adds() -> None:
    tokenizer = load_tokenizer(TARGET)
    detokenizer = Detokenizer(tokenizer)
    tokens = tokenizer.encode("a bc", add_special_tokens=False)
    special = tokenizer.all_special_ids[0]
    shown = tokenizer.decode([special])
    plain = prompt_offsets(detokenizer, tokens, "a bc")
    assert plain[0] == 0 and prompt_offsets(detokenizer, [special, *tokens], "a bc") == [0, *plain]
    assert prompt_offsets(detokenizer, [special, *tokens], shown + "a bc") == [0, *(len(shown) + o for o in plain)]
    assert max(prompt_offsets(detokenizer, tokens, "else")) <= 4
