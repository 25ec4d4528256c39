"""What a text shows of its end and of special tokens, with random tokenizers and in random portions."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from osd.engine.detokenizer import Detokenizer
from osd.engine.text_stream import TextStream
from storage.records import Request
from tests.osd.engine.test_text import END_ID, stops
from tests.support.random_tokenizers import FAMILIES, OTHER, plain_text, random_tokenizer, random_tokens

SEEDS = st.integers(0, 1 << 32)


def streamed(tokenizer, request: Request, tokens: list[int], rng: random.Random) -> TextStream:
    """The stream after tokens in portions; what it has shown is its text."""
    stream, shown, place = TextStream(Detokenizer(tokenizer), request, frozenset([END_ID])), "", 0
    while place < len(tokens):
        size = rng.randrange(1, 5)
        shown += stream.push(tokens[place : place + size])
        place += size
    shown += stream.finish()
    assert shown == stream.text
    return stream


@given(st.sampled_from(list(FAMILIES)), SEEDS)
@example("metaspace", 2078)  # two stop strings that overlap
def test_the_text_ends_with_what_ended_it_where_that_is_asked(family: str, seed: int) -> None:
    rng = random.Random(seed)
    tokenizer = random_tokenizer(family, 1)
    tokens = [*random_tokens(tokenizer, rng), *random_tokens(tokenizer, rng)]
    request = Request((1, 5), stop=stops(rng, plain_text(tokenizer, (1, 5), tokens)))
    without = streamed(tokenizer, request, tokens, rng)
    again = streamed(tokenizer, request, tokens, rng)
    assert (without.text, without.stopped) == (again.text, again.stopped), "portions do not matter"
    text = streamed(tokenizer, replace(request, include_stop_str_in_output=True), tokens, rng).text
    if without.stopped:
        assert text in [without.text + stop for stop in request.stop]
    elif without.ended and END_ID not in tokens and OTHER in request.stop and 3 in tokens:
        assert text == without.text + OTHER
    elif set(tokens).isdisjoint({END_ID, 3}):
        assert text == without.text


@pytest.mark.parametrize("skip", [True, False])
@given(st.sampled_from(["byte_level", "metaspace", "unigram", "suffixes"]), SEEDS)
def test_special_tokens_are_shown_where_that_is_asked(skip: bool, family: str, seed: int) -> None:
    rng = random.Random(seed)
    tokenizer = random_tokenizer(family, 1)
    tokens = [token for token in [*random_tokens(tokenizer, rng), 1, *random_tokens(tokenizer, rng), 3] if token != 2]
    tokens = [token for token in tokens if token < len(tokenizer)]
    stream = streamed(tokenizer, Request((4, 5), skip_special_tokens=skip), tokens, rng)

    def decoded(ids: list[int]) -> str:
        return str(tokenizer.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False))

    whole, prompt = decoded([4, 5, *tokens]), decoded([4, 5])
    if whole.startswith(prompt):
        assert stream.text == whole.removeprefix(prompt)
    assert (OTHER in stream.text) != skip


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"stop": (OTHER,)}, ""), ({"stop": (OTHER,), "include_stop_str_in_output": True}, OTHER),
        ({"stop_token_ids": (3,)}, ""), ({"stop_token_ids": (3,), "include_stop_str_in_output": True}, ""),
        ({"stop_token_ids": (3,), "include_stop_str_in_output": True, "skip_special_tokens": False}, OTHER),
        ({"stop": (OTHER,), "include_stop_str_in_output": True, "skip_special_tokens": False}, OTHER),
    ],
)  # fmt: skip
def test_a_special_token_that_ends_a_text(asked: dict[str, object], text: str) -> None:
    """As a stop string it is found though texts leave it out."""
    tokenizer = random_tokenizer("byte_level", 0)
    stream = streamed(tokenizer, Request((4, 5), **asked), [3, 4, 4], random.Random(0))  # type: ignore[arg-type]
    assert stream.text == text and stream.ended
