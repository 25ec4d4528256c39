"""A cache takes memory as texts grow, and with a bound a request waits for its room."""

from __future__ import annotations

import pytest
import torch

from osd.engine.engine import Engine
from osd.models.pair import Pair
from storage.errors import BadSetting
from storage.records import Request
from tests.support.captured import as_on_a_gpu
from tests.support.models import alone, prompts, random_pair, some
from tests.support.settings import settings_of

FIRST, BLOCK = 32, 16
POSITION = 2 * 2 * 2 * 8 * 4
"""Bytes: layers, keys and values, heads, their width, float32."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions that rows begin with and grow by, so that texts can be short."""
    monkeypatch.setattr("osd.models.kv_cache.FIRST", FIRST)
    monkeypatch.setattr("osd.models.kv_cache.BLOCK", BLOCK)


@pytest.fixture(scope="module")
def pair() -> Pair:
    return random_pair("llama")


def engine_of(pair: Pair, **serve: object) -> Engine:
    kind = {"drafters__kind": serve.pop("kind", "causal")}
    settings = kind | {f"serve__{name}": value for name, value in serve.items()}
    rule = {"gamma__rule": "fixed", "gamma__initial": 3}
    return Engine(pair, settings_of(**{"serve__max_batch": 4, "serve__max_length": 200} | rule | settings))


def step(engine: Engine, times: int = 1) -> dict[str, list[int]]:
    """Requests that ended, with their texts."""
    outputs = [output for _ in range(times) for output in engine.step()]
    return {each.request_id: list(each.completion.tokens) for each in outputs if each.completion}


@torch.inference_mode()
def test_what_a_row_holds_stays_when_rows_become_longer_or_more_or_fewer(pair: Pair) -> None:
    decoder, whole = pair.target.decoder(2, 200), pair.target.decoder(3, FIRST)
    texts = [some(1, n, n)[0].tolist() for n in (14, 25)]
    for each in (decoder, whole):
        for row, text in enumerate(texts):
            each.prefill(row, text)
    assert decoder.cache.stride == FIRST
    decoder.cache.make_room(FIRST + 1)
    assert decoder.cache.stride == 2 * FIRST
    for resized in ((3, 2 * FIRST), (2, 28), (2, 111)):
        decoder.cache.resize(*resized)
        ours, theirs = (each.logits(some(2, 3, 1), [14, 25]) for each in (decoder, whole))
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("drafter", "captured"), [("causal", False), ("causal", True), ("trigram", False)])
def test_many_rows_that_may_be_long_cost_little_at_first(
    pair: Pair, drafter: str, captured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if captured:
        as_on_a_gpu(monkeypatch)
        pair = random_pair("llama")
    engine = engine_of(pair, max_batch=16, kind=drafter)
    requests = [Request(p, max_new_tokens=6, ignore_eos=True) for p in prompts(6, seed=1, longest=12)]
    done = {c.request.id: list(c.tokens) for c in engine.run(requests)}
    grown = 2 if drafter == "trigram" else 1  # a table's trees have more nodes than a chain
    assert engine.target.cache.bytes == (16 * grown * FIRST + 1) * POSITION
    long = Request(prompts(1, seed=2)[0], max_new_tokens=2 * FIRST, ignore_eos=True)
    (found,) = engine.run([long])
    assert list(found.tokens) == alone(pair.target.module, long.prompt_tokens, 2 * FIRST)
    assert engine.target.cache.stride >= 2 * FIRST
    assert all(done[r.id] == alone(pair.target.module, r.prompt_tokens, 6) for r in requests)


def test_a_request_waits_for_its_room_and_none_is_lost(pair: Pair) -> None:
    """There is room for 512 positions: two long rows, of 176 and their padding, leave none for a third."""
    memory = 512 * POSITION
    engine = engine_of(pair, max_batch=8)
    with torch.inference_mode():
        engine.target.bound(memory)
    long = [Request(p, max_new_tokens=150, ignore_eos=True, id=f"long {i}") for i, p in enumerate(prompts(3, seed=3))]
    few = enumerate(prompts(7, seed=4, longest=9))
    short = [Request(p, max_new_tokens=9 + i, ignore_eos=True, id=f"short {i}") for i, p in few]
    asked = [*short[:3], *long, *short[3:]]
    for request in asked:
        engine.submit(request)
    done: dict[str, list[int]] = {}
    sizes, beside = [], set()
    while engine.busy:
        done |= step(engine)
        sizes.append(engine.target.cache.bytes - POSITION)
        beside.add(frozenset(row.request.id for row in engine.rows))
    assert set(done) == {request.id for request in asked}
    for request in asked:
        assert done[request.id] == alone(pair.target.module, request.prompt_tokens, request.max_new_tokens)
    assert sizes[0] < max(sizes) <= memory, "it grew within its bound"
    assert engine.stats.waited_for_memory and max(sum("long" in name for name in each) for each in beside) == 2
    assert max(map(len, beside)) > 2, "short ones share it"


def test_who_ends_early_gives_its_room_to_others(pair: Pair) -> None:
    engine = engine_of(pair, max_batch=8)
    with torch.inference_mode():
        engine.target.bound(300 * POSITION)
    first, second = (Request(p, max_new_tokens=150, ignore_eos=True) for p in prompts(2, seed=3))
    engine.submit(first)
    engine.submit(second)
    step(engine, 4)
    assert [row.request.id for row in engine.rows] == [first.id]
    assert engine.cancel(first.id)
    step(engine, 2)
    assert [row.request.id for row in engine.rows] == [second.id]


def test_a_bound_that_holds_no_row_is_refused(pair: Pair) -> None:
    with pytest.raises(BadSetting, match=r"serve\.cache_mb.*do not hold a row of \d+ positions; give 1 or more"):
        engine_of(pair).target.bound(1000)
    assert engine_of(pair, cache_mb=1).target.cache.budget is not None
