"""Prompts are read in pieces between rounds: bounded steps, the same texts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import pytest
import torch

from osd.engine.engine import Engine
from osd.engine.prefill_queue import share
from osd.models.decoder import Decoder
from osd.models.prefill import PrefillChunk, read_pieces
from storage.records import Request
from storage.sampling import Sampling
from storage.settings import Settings
from tests.support.models import CONFIGS, VOCABULARY, alone, model_of, noisy, prompts, random_pair
from tests.support.settings import settings_of

LENGTHS = (1, 2, 200, 65, 64, 33, 130, 7, 180)


def long_prompts(lengths: tuple[int, ...], seed: int = 0) -> list[tuple[int, ...]]:
    generator = torch.Generator().manual_seed(seed)
    return [tuple(torch.randint(2, VOCABULARY, (n,), generator=generator).tolist()) for n in lengths]


def settings(**more: object) -> Settings:
    return settings_of(
        **{"serve__max_batch": 4, "serve__max_length": 240, "gamma__rule": "fixed", "serve__prefill_tokens": 64} | more
    )


def texts(engine: Engine, asked: list[Request]) -> list[list[int]]:
    done = {c.request.id: list(c.tokens) for c in engine.run(asked)}
    return [done[request.id] for request in asked]


@contextmanager
def counted(decoder: Decoder) -> Iterator[list[int]]:
    """Tokens of every pass that fills the cache with prompts, padding included."""
    fed: list[int] = []
    read = decoder.read

    def counting(first: int, pieces: list[list[int]], starts: list[int]) -> None:
        fed.append(sum(map(len, pieces)))
        read(first, pieces, starts)

    decoder.read = counting  # type: ignore[method-assign, assignment]
    yield fed
    del decoder.read


@pytest.mark.parametrize("kind", CONFIGS)
def test_every_architecture_reads_in_pieces_beside_rows_that_decode(kind: str) -> None:
    pair = random_pair(kind)
    asked = [Request(p, max_new_tokens=4 + 5 * (i % 3)) for i, p in enumerate(long_prompts(LENGTHS))]
    expected = [alone(pair.target.module, r.prompt_tokens, r.max_new_tokens) for r in asked]
    for batch in (1, 4):
        assert texts(Engine(pair, settings(serve__max_batch=batch)), asked) == expected, f"batch {batch}"


def test_the_longest_step_is_bounded_by_the_piece() -> None:
    pair = random_pair()
    engine = Engine(pair, settings(serve__max_batch=8))
    asked = [Request(p, max_new_tokens=40) for p in prompts(7, seed=1)]
    for request in asked:
        engine.submit(request)
    while len(engine.rows) < 7:
        engine.step()
    late = Request(long_prompts((230,))[0], max_new_tokens=5)
    engine.submit(late)
    with counted(engine.target) as target, counted(engine.pool.decoder) as draft:
        for _ in range(4):
            before = engine.stats.read_tokens, sum(draft)
            brought = {p.request_id for p in engine.step() if p.tokens}
            assert engine.stats.read_tokens - before[0] <= 64 and sum(draft) - before[1] <= 2 * 64
            assert {r.id for r in asked} <= brought  # nobody waits
        assert late.id in brought and sum(target) == 229 and max(target) <= 64


def test_a_prompt_alone_comes_as_early_as_it_can() -> None:
    """One step a piece, and its first tokens in the step of the last."""
    pair = random_pair()
    engine = Engine(pair, settings(serve__prefill_tokens=128))
    engine.submit(Request(long_prompts((200,))[0], max_new_tokens=5))
    assert engine.step() == [] and engine.busy
    (first,) = engine.step()
    assert first.tokens


@pytest.mark.parametrize(
    ("left", "given"),
    [
        ((), []),
        ((700,), [512]),
        ((30,), [30]),
        ((700, 700), [512, 0]),  # of equals the first
        ((1500, 20, 30), [462, 20, 30]),
        ((1500, 600, 100), [128, 284, 100]),  # short ones first, and a quarter for who waited longest
        ((0, 600), [0, 512]),
    ],
)
def test_who_reads_how_much(left: tuple[int, ...], given: list[int]) -> None:
    assert share(left, 512) == given


def test_a_long_prompt_is_not_starved_by_short_ones() -> None:
    pair = random_pair()
    engine = Engine(pair, settings(serve__max_batch=3))
    long = Request(long_prompts((230,))[0], max_new_tokens=3)
    short = (Request(p, max_new_tokens=1) for p in long_prompts((64,) * 100, seed=2))
    engine.submit(long)
    for _ in range(230 // 16 + 1):
        while engine.room > 0:
            engine.submit(next(short))
        if any(p.request_id == long.id and p.tokens for p in engine.step()):
            return
    pytest.fail("it still waits")


def test_rows_that_are_being_read_are_cancelled_and_swapped_under() -> None:
    pair = random_pair()
    others = [model_of(noisy(pair.target.module, noise, seed=9)) for noise in (3.0, 0.01)]
    engine = Engine(pair, settings())
    asked = [Request(p, max_new_tokens=12) for p in long_prompts((200, 150, 7, 170, 190, 5, 120), seed=5)]
    for request in asked:
        engine.submit(request)
    done = {p.request_id: p.completion for p in engine.step() if p.completion}
    reading = [row.request.id for row in engine.prefill_queue.rows]
    assert asked[0].id in reading and asked[1].id in reading
    assert engine.cancel(asked[0].id)
    for step in count():
        if not engine.busy:
            break
        done |= {p.request_id: p.completion for p in engine.step() if p.completion}
        if step == 2:
            assert engine.cancel(asked[4].id)
        other = others[step % 2]
        engine.pool.decoder.forward = other.build(other.module)
    cancelled = [asked[0].id, asked[4].id]
    assert all(done[i].finish_reason == "cancelled" and not done[i].outcomes for i in cancelled)
    for request in asked:
        if request.id not in cancelled:
            assert list(done[request.id].tokens) == alone(pair.target.module, request.prompt_tokens, 12)


def test_a_seed_repeats_a_text_whoever_is_read_beside_it() -> None:
    pair = random_pair()
    mine, *others = long_prompts((150, 220, 90, 30, 200))
    request = Request(mine, max_new_tokens=20, sampling=Sampling(temperature=1.0, top_p=0.95, seed=7))
    beside = [Request(p, max_new_tokens=9, sampling=Sampling(0.8, seed=i)) for i, p in enumerate(others)]
    assert texts(Engine(pair, settings()), [request])[0] == texts(Engine(pair, settings()), [*beside, request])[-1]


@pytest.mark.parametrize("kind", ["llama", "gpt_neox"])
@torch.inference_mode()
def test_pieces_that_share_a_pass_are_read_as_alone(kind: str) -> None:
    target = random_pair(kind).target
    lengths = (30, 28, 3, 29, 96)
    rows = long_prompts(lengths)
    together, single = target.decoder(6, 100), target.decoder(6, 100)
    with counted(together) as fed:
        read_pieces(together, [PrefillChunk(i + 1, 0, row) for i, row in enumerate(rows)])
    assert fed == [58, 3, 29, 96]
    for i, row in enumerate(rows):
        single.prefill(i + 1, row)
    following = torch.full((6, 1), 5)
    starts = [0, *lengths]
    torch.testing.assert_close(
        together.logits(following, starts)[1:], single.logits(following, starts)[1:], atol=1e-4, rtol=1e-4
    )


@torch.inference_mode()
def test_no_padding_is_written_beyond_a_row() -> None:
    target = random_pair("gpt_neox").target
    decoder = target.decoder(3, 40)
    with counted(decoder) as fed:
        read_pieces(decoder, [PrefillChunk(0, 36, (3, 4, 5)), PrefillChunk(1, 0, (3, 4, 5, 6, 7))])
    assert fed == [3, 5]
