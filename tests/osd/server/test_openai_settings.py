"""What a request may say, through the official client: chat and completion, whole and streamed, say the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import openai
import pytest

from osd.models.pair import Pair
from tests.osd.server.conftest import Server
from tests.osd.server.test_openai_client import PROMPTS, UNDRAFTED, Plain, framed
from tests.support.waiting import until

TEXT = PROMPTS[0]


@dataclass(frozen=True)
class Way:
    """One of the four ways to ask."""

    client: openai.OpenAI
    chat: bool
    stream: bool

    def ask(self, text: str = TEXT, **settings: Any) -> list[str]:
        """The text of each choice."""
        return self.texts(self.chunks(text, **settings), settings.get("n", 1))

    def texts(self, chunks: list[Any], n: int = 1) -> list[str]:
        """What came, put together, of each choice."""
        texts = [""] * n
        for choice in [choice for chunk in chunks for choice in chunk.choices]:
            texts[choice.index] += self._said(choice)
        return texts

    def chunks(self, text: str = TEXT, **settings: Any) -> list[Any]:
        """What comes: many if it is streamed."""
        made = self.begin(text, **settings)
        return list(made) if self.stream else [made]

    def begin(self, text: str = TEXT, **settings: Any) -> Any:
        """What the client's call returns."""
        asked = {"model": "target", "max_tokens": 16, "temperature": 0, "stream": self.stream, **settings}
        if self.chat:
            return self.client.chat.completions.create(messages=[{"role": "user", "content": text}], **asked)
        return self.client.completions.create(prompt=text, **asked)

    def _said(self, choice: Any) -> str:
        if not self.chat:
            return str(choice.text)
        return (choice.delta if self.stream else choice.message).content or ""


@pytest.fixture(params=["chat", "chat streamed", "completion", "completion streamed"])
def way(client: openai.OpenAI, request: pytest.FixtureRequest) -> Way:
    return Way(client, request.param.startswith("chat"), request.param.endswith("streamed"))


@pytest.fixture
def wanted(way: Way, plain: Plain, pair: Pair) -> Callable[[int], str]:
    """So many tokens of the target alone after the text that is asked."""
    return lambda count: plain(framed(pair, TEXT) if way.chat else TEXT, count)


def test_only_the_likeliest_token_is_the_targets_own(way: Way, wanted: Callable[[int], str]) -> None:
    assert way.ask(temperature=1.0, top_p=1e-6) == [wanted(16)]
    assert way.ask(temperature=1.0, extra_body={"top_k": 1}) == [wanted(16)]


def test_a_seed_says_the_same_again_and_another_one_something_else(way: Way) -> None:
    asked = {"temperature": 1.0, "max_tokens": 24, "extra_body": UNDRAFTED}
    assert way.ask(seed=5, **asked) == way.ask(seed=5, **asked) != way.ask(seed=6, **asked)


def test_greedy_choices_are_all_the_targets_own(way: Way, wanted: Callable[[int], str]) -> None:
    assert way.ask(n=3) == [wanted(16)] * 3


def test_one_stop_string(way: Way, wanted: Callable[[int], str]) -> None:
    whole = wanted(40)
    stop = whole[12:15]
    chunks = way.chunks(stop=stop, max_tokens=40)
    assert way.texts(chunks) == [whole[: whole.index(stop)]]
    assert chunks[-1].choices[0].finish_reason == "stop"


@pytest.mark.parametrize("gamma", [0, 1, 8])
def test_no_gamma_changes_what_is_said(way: Way, wanted: Callable[[int], str], gamma: int) -> None:
    assert way.ask(extra_body={"osd": {"gamma": gamma, "learn": False}}, user="somebody") == [wanted(16)]


def test_a_model_that_is_not_there(way: Way) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        way.ask(model="gpt-4")
    assert caught.value.code == "model_not_found" and "target" in caught.value.message


def test_a_prompt_that_no_row_holds(way: Way) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        way.ask("many words " * 600)
    assert caught.value.code == "context_length_exceeded" and "512" in caught.value.message


def test_a_setting_out_of_its_range_is_named(way: Way) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        way.ask(temperature=-1.0)
    assert caught.value.param == "temperature"


@pytest.mark.parametrize("chat", [False, True])
def test_who_stops_reading_frees_the_row(server: Server, client: openai.OpenAI, chat: bool) -> None:
    with Way(client, chat, stream=True).begin(max_tokens=450, extra_body={"ignore_eos": True}) as answer:
        next(iter(answer))
        until(lambda: server.snapshot()["osd_requests_running"] == 1, "it is being answered")
    until(lambda: server.snapshot()["osd_requests_running"] == 0, "the row is free")


def test_a_chat_says_its_limit_in_the_newer_way(client: openai.OpenAI) -> None:
    chat = Way(client, chat=True, stream=False)
    made = chat.chunks(max_tokens=openai.omit, max_completion_tokens=9)[0]
    assert made.usage.completion_tokens == 9 and made.choices[0].finish_reason == "length"
