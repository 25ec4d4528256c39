"""The official client, against transformers with the target alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import openai
import pytest
import torch
from openai.types.chat.chat_completion_token_logprob import ChatCompletionTokenLogprob

from osd.models.pair import Pair
from tests.osd.server.conftest import Server
from tests.support.waiting import PATIENCE

PROMPTS = ["SELECT name FROM", "def add(a, b):", "Kerro minulle", "There are 12 apples and 5"]
CHATS = ["How many days has a leap year?", "Name a planet.", "Hei, mitä kuuluu?"]
UNDRAFTED = {"osd": {"gamma": 0}}
"""What a seed draws hangs on the draft, whose pass changes when it is compiled."""
Plain = Callable[[str, int], str]


def framed(pair: Pair, text: str) -> str:
    """A question in the chat template."""
    chat = [{"role": "user", "content": text}]
    return str(pair.tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_a_greedy_completion_is_the_targets_own(client: openai.OpenAI, plain: Plain, prompt: str, stream: bool) -> None:
    made = client.completions.create(model="target", prompt=prompt, max_tokens=40, temperature=0, stream=stream)
    text = "".join(chunk.choices[0].text for chunk in made) if stream else made.choices[0].text
    assert text == plain(prompt, 40)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("question", CHATS)
def test_a_greedy_chat_is_the_targets_own(
    client: openai.OpenAI, plain: Plain, pair: Pair, question: str, stream: bool
) -> None:
    made = client.chat.completions.create(
        model="target", messages=[{"role": "user", "content": question}], max_tokens=40, temperature=0, stream=stream
    )
    if stream:
        deltas = [chunk.choices[0].delta for chunk in made]
        assert deltas[0].role == "assistant" and all(delta.role is None for delta in deltas[1:])
        text = "".join(delta.content or "" for delta in deltas)
    else:
        assert made.choices[0].message.role == "assistant"
        text = made.choices[0].message.content
    assert text == plain(framed(pair, question), 40)


def test_parts_of_a_message_and_the_role_developer(client: openai.OpenAI) -> None:
    def ask(messages: list) -> str:
        return (
            client.chat.completions.create(model="target", messages=messages, max_tokens=8, temperature=0)
            .choices[0]
            .message.content
        )

    parts = [{"type": "text", "text": "Name a "}, {"type": "text", "text": "planet."}]
    assert ask([{"role": "user", "content": parts}]) == ask([{"role": "user", "content": "Name a planet."}])
    rest = [{"role": "user", "content": "Name a planet."}]
    assert ask([{"role": "developer", "content": "Be brief."}, *rest]) == ask(
        [{"role": "system", "content": "Be brief."}, *rest]
    )


def test_usage_and_how_it_ended(client: openai.OpenAI, pair: Pair) -> None:
    made = client.completions.create(model="target", prompt=PROMPTS[0], max_tokens=7, temperature=0)
    assert made.choices[0].finish_reason == "length"
    assert (made.usage.prompt_tokens, made.usage.completion_tokens) == (len(pair.tokenizer.encode(PROMPTS[0])), 7)
    assert made.usage.total_tokens == made.usage.prompt_tokens + 7
    assert made.id.startswith("cmpl-") and made.model == "target"


def test_a_stream_says_its_usage_last_where_it_is_asked(client: openai.OpenAI) -> None:
    asked = dict(model="target", prompt=PROMPTS[0], max_tokens=7, temperature=0, stream=True)
    chunks = list(client.completions.create(**asked, stream_options={"include_usage": True}))
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 7
    assert all(chunk.usage is None for chunk in chunks[:-1]) and len({chunk.id for chunk in chunks}) == 1
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 2) + ["length"]
    assert all(chunk.choices for chunk in client.completions.create(**asked))


@pytest.mark.parametrize("stream", [False, True])
def test_n_choices_are_those_of_their_seeds(client: openai.OpenAI, stream: bool) -> None:
    asked = dict(model="target", prompt=PROMPTS[1], max_tokens=12, temperature=1.0, extra_body=UNDRAFTED)
    alone = [client.completions.create(**asked, seed=7 + i).choices[0].text for i in range(3)]
    assert len(set(alone)) == 3
    made = client.completions.create(**asked, seed=7, n=3, stream=stream)
    texts = ["", "", ""]
    for choices in [chunk.choices for chunk in made] if stream else [made.choices]:
        for choice in choices:
            texts[choice.index] += choice.text
    assert texts == alone


def test_several_prompts_as_text_and_as_tokens(client: openai.OpenAI, pair: Pair, plain: Plain) -> None:
    asked = dict(model="target", max_tokens=10, temperature=0)
    wanted = [plain(prompt, 10) for prompt in PROMPTS[:2]]
    by_text = client.completions.create(prompt=PROMPTS[:2], **asked)
    assert [choice.text for choice in by_text.choices] == wanted
    tokens = [pair.tokenizer.encode(prompt) for prompt in PROMPTS[:2]]
    assert [choice.text for choice in client.completions.create(prompt=tokens, **asked).choices] == wanted
    assert client.completions.create(prompt=tokens[0], **asked).choices[0].text == wanted[0]
    assert by_text.usage.prompt_tokens == sum(map(len, tokens))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("place", [3, 9, 20])
def test_nothing_of_a_stop_string_comes_out(client: openai.OpenAI, plain: Plain, place: int, stream: bool) -> None:
    whole = plain(PROMPTS[0], 60)
    stop = whole[place : place + 6]
    made = client.completions.create(
        model="target", prompt=PROMPTS[0], max_tokens=60, temperature=0, stop=[stop, "never there"], stream=stream
    )
    chunks = list(made) if stream else [made]
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole[: whole.index(stop)]
    assert chunks[-1].choices[0].finish_reason == "stop"


def reference_logprobs(pair: Pair, prompt: list[int], text: list[int]) -> torch.Tensor:
    """(n, V) the target's log-probabilities of each token of a text, from one plain pass."""
    with torch.inference_mode():
        logits = pair.target.module(input_ids=torch.tensor([[*prompt, *text]]), use_cache=False).logits
    return logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("temperature", [0, 1.3])
def test_logprobs_are_the_targets_before_any_warping(
    client: openai.OpenAI, pair: Pair, temperature: float, stream: bool
) -> None:
    for seed in range(20):  # what is drawn may be tokenized otherwise than it was drawn
        made = client.completions.create(
            model="target", prompt=PROMPTS[0], max_tokens=20, temperature=temperature, seed=seed, top_p=0.9, logprobs=3,
            stream=stream,
        )  # fmt: skip
        found = [chunk.choices[0].logprobs for chunk in made] if stream else [made.choices[0].logprobs]
        text = pair.tokenizer.encode("".join(word for one in found for word in one.tokens), add_special_tokens=False)
        if len(text) == sum(len(one.tokens) for one in found):
            break
    else:
        pytest.fail("none of twenty texts is tokenized as it was drawn")
    logprobs = [value for one in found for value in one.token_logprobs]
    top = [value for one in found for value in one.top_logprobs]
    wanted = reference_logprobs(pair, pair.tokenizer.encode(PROMPTS[0]), text)
    assert logprobs == pytest.approx(wanted.gather(1, torch.tensor(text)[:, None])[:, 0].tolist(), abs=2e-3)
    for one, best in zip(top, wanted.topk(3).values.tolist(), strict=True):
        assert sorted(one.values(), reverse=True) == pytest.approx(best, abs=2e-3)


@pytest.mark.parametrize("stop", [None, " "])
def test_streamed_logprobs_are_the_whole_answers(client: openai.OpenAI, stop: str | None) -> None:
    asked = dict(
        model="target", messages=[{"role": "user", "content": CHATS[2]}], max_tokens=24, temperature=0, logprobs=True,
        top_logprobs=2, stop=stop,
    )  # fmt: skip
    whole = client.chat.completions.create(**asked).choices[0]
    streamed = [chunk.choices[0] for chunk in client.chat.completions.create(**asked, stream=True)]
    entries = [entry for choice in streamed if choice.logprobs for entry in choice.logprobs.content]
    assert [_named(entry) for entry in entries] == [_named(entry) for entry in whole.logprobs.content]
    for entry, same in zip(entries, whole.logprobs.content, strict=True):  # a pass may be compiled between the two
        assert _values(entry) == pytest.approx(_values(same), abs=1e-5)
    said = bytes(byte for entry in entries for byte in entry.bytes)
    assert said.decode(errors="ignore").startswith(whole.message.content.rstrip("\ufffd"))


def _named(entry: ChatCompletionTokenLogprob) -> list[tuple[str, list[int] | None]]:
    """The token and the two likeliest ones."""
    assert len(entry.top_logprobs) == 2
    return [(one.token, one.bytes) for one in (entry, *entry.top_logprobs)]


def _values(entry: ChatCompletionTokenLogprob) -> list[float]:
    return [one.logprob for one in (entry, *entry.top_logprobs)]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("ignore_eos", "stop"), [(False, None), (True, None), (False, ["a"])])
def test_there_are_as_many_logprobs_as_tokens(
    client: openai.OpenAI, pair: Pair, ignore_eos: bool, stop: list[str] | None, stream: bool
) -> None:
    """The end token and those of the stop string too, as in vLLM; none of them is in the text."""
    asked = dict(model="target", prompt=framed(pair, CHATS[0]), max_tokens=200, temperature=0, logprobs=0, stop=stop)
    options = {"stream_options": {"include_usage": True}} if stream else {}
    made = client.completions.create(**asked, stream=stream, extra_body={"ignore_eos": ignore_eos}, **options)
    chunks = list(made) if stream else [made]
    choices = [choice for chunk in chunks for choice in chunk.choices]
    text = "".join(choice.text for choice in choices)
    tokens = [token for choice in choices if choice.logprobs for token in choice.logprobs.tokens]
    assert len(tokens) == chunks[-1].usage.completion_tokens
    assert ("<|end|>" in tokens) is (stop is None) and "<|end|>" not in text
    assert (len(tokens) == 200) is ignore_eos and not (stop and "a" in text)


def test_text_offsets_lead_to_the_tokens(client: openai.OpenAI) -> None:
    made = client.completions.create(model="target", prompt=PROMPTS[0], max_tokens=20, temperature=0, logprobs=0)
    choice = made.choices[0]
    for word, offset in zip(choice.logprobs.tokens, choice.logprobs.text_offset, strict=True):
        assert choice.text[offset:].startswith(word)


def test_many_at_once_get_their_own_answers(server: Server, plain: Plain) -> None:
    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=PATIENCE) as client:
            asked = [
                client.completions.create(model="target", prompt=PROMPTS[i % 4], max_tokens=16 + i, temperature=0)
                for i in range(16)
            ]
            return [made.choices[0].text for made in await asyncio.gather(*asked)]

    assert asyncio.run(ask()) == [plain(PROMPTS[i % 4], 16 + i) for i in range(16)]


def test_the_model_by_its_name(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["target"]
    assert client.models.retrieve("target").max_model_len == 512
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4")


def test_speculation_in_vllms_words(client: openai.OpenAI) -> None:
    made = client.completions.create(
        model="target", prompt=PROMPTS[0], max_tokens=20, temperature=0,
        extra_body={"osd": {"metrics": "detailed", "gamma": 3}},
    )  # fmt: skip
    facts = made.metrics["speculative_decoding"]
    assert sum(facts["per_step_accepted"]) == facts["num_accepted_draft_tokens"] <= facts["num_draft_tokens"]
    assert len(facts["per_step_accepted"]) == facts["num_spec_steps"] == sum(facts["acceptance_histogram"])
    assert sum(facts["acceptance_histogram"][4:]) == 0, "three tokens a round, as asked"
    plainly = client.completions.create(
        model="target", prompt=PROMPTS[0], max_tokens=20, temperature=0,
        extra_body={"osd": {"metrics": "summary", "gamma": 0}},
    )  # fmt: skip
    assert plainly.metrics["speculative_decoding"]["num_spec_steps"] == 0
    assert plainly.choices[0].text == made.choices[0].text


def test_the_draft_version_and_the_route_are_in_the_answer(client: openai.OpenAI) -> None:
    raw = client.completions.with_raw_response.create(
        model="target", prompt="a", max_tokens=2, extra_headers={"X-OSD-Route": "default", "X-Request-Id": "mine-1"}
    )
    made = raw.parse()
    assert made.system_fingerprint == raw.headers["x-osd-draft-version"] == made.osd["draft_version"][0]
    assert raw.headers["x-osd-route"] == made.osd["route"][0] == "default"
    assert raw.headers["x-request-id"] == "mine-1"
