"""What a text shows of its end and of special tokens, with random tokenizers and in random portions; and what is
counted where it ends."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from osd.drafters.tree import TreeDrafter
from osd.engine.detokenizer import Detokenizer
from osd.engine.engine import Engine
from osd.engine.text_stream import TextStream
from osd.sequence import RequestOutput
from osd.verification.result import VerifyResult
from storage.records import Request
from storage.sampling import Sampling
from tests.osd.engine.test_text import END_ID, stops
from tests.support.models import VOCABULARY, alone, prompts, random_pair
from tests.support.proposers import BranchingDrafter, Guessing
from tests.support.random_tokenizers import FAMILIES, OTHER, plain_text, random_tokenizer, random_tokens
from tests.support.settings import settings_of

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


def drafts_trees(engine: Engine, kind: type[TreeDrafter] | None, known: dict[tuple[int, ...], list[int]]) -> None:
    """Have an engine draft trees of this kind, with much of the target's own text; its draft's chains without one."""
    if kind is not None:
        engine.drafting = kind(engine.pool, Guessing(VOCABULARY, known, hit=0.95), 12, engine.target)


@pytest.mark.parametrize("temperature", [0.0, 0.1])
@pytest.mark.parametrize("kind", [None, TreeDrafter, BranchingDrafter])
def test_no_round_accepts_more_than_it_emits(kind: type[TreeDrafter] | None, temperature: float) -> None:
    """Forty texts that end at a stop token, at a length, or where the model ends them, most within a round's draft."""
    pair, rng, counted = random_pair("llama", noise=0.02), random.Random(7), dict[str, list[int]]()
    texts = {prompt: alone(pair.target.module, prompt, 24) for prompt in prompts(40, seed=41)}
    pair = replace(pair, eos_ids=frozenset([next(iter(texts.values()))[5]]))
    engine = Engine(pair, settings_of(serve__max_batch=4, gamma__rule="fixed", gamma__initial=6))
    drafts_trees(engine, kind, texts)

    def listen(rows: object, progress: list[RequestOutput], verdict: VerifyResult, scored: object) -> None:
        for step, accepted in zip(progress, verdict.accepted, strict=True):
            counted.setdefault(step.request_id, []).append(accepted)

    engine.listeners.append(listen)
    asked = [
        Request(
            prompt, max_new_tokens=rng.randrange(1, 25), stop_token_ids=tuple(rng.sample(text, rng.randrange(3))),
            sampling=Sampling(temperature, seed=number),
        )
        for number, (prompt, text) in enumerate(texts.items())
    ]  # fmt: skip
    done = list(engine.run(asked))
    for one in done:
        assert all(0 <= r.accepted <= r.emitted <= r.accepted + 1 for r in one.rounds), "and one of the target's own"
        assert sum(r.emitted for r in one.rounds) == len(one.tokens)
        judged = [r.judged_right for r in one.rounds]
        assert judged == counted[one.request.id], "α goes by what was judged, as vLLM's counters do"
        (total,) = one.outcomes
        assert (total.accepted, total.rejections) == (sum(judged), sum(r.rejected for r in one.rounds))
        assert sum(accepted for _, accepted, _ in total.positions) == total.accepted
    assert {one.finish_reason for one in done} == {"stop", "length"}
    assert any(r.behind for one in done for r in one.rounds)
