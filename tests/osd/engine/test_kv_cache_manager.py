"""With a bound on the cache, sequences wait for blocks, before they begin and in their texts, and none is lost."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from osd.engine.engine import Engine
from osd.engine.prefill_queue import KVCacheManager
from osd.models.kv_blocks import BLOCK
from osd.models.kv_cache import RaggedCache
from osd.models.pair import Pair
from osd.sequence import SequenceState
from router.fixed import FixedRouter
from storage.records import Request
from storage.sampling import Sampling
from tests.support.caches import laid_out
from tests.support.captured import as_on_a_gpu
from tests.support.models import alone, prompts, random_pair
from tests.support.settings import settings_of

LIMIT = 200
TEXTS: dict[tuple[int, ...], list[int]] = {}


@pytest.fixture(scope="module")
def pair() -> Pair:
    return random_pair("llama")


def engine_of(pair: Pair, total: int | None, kind: str = "causal", **more: object) -> Engine:
    """An engine whose sequences hold at most so many blocks."""
    values = {"serve__max_batch": 8, "serve__max_length": LIMIT, "drafters__kind": kind, "gamma__rule": "fixed"}
    engine = Engine(pair, settings_of(**{"gamma__initial": 3, **values, **more}))
    if total is not None:
        engine.target.cache.bound(total)
    return engine


def said(pair: Pair, request: Request) -> list[int]:
    """The plain reference's text: all random targets here are the same one."""
    text = TEXTS.setdefault(request.prompt_tokens, [])
    if len(text) < request.max_new_tokens:
        text[:] = alone(pair.target.module, request.prompt_tokens, request.max_new_tokens)
    return text[: request.max_new_tokens]


def served(engine: Engine, requests: list[Request]) -> dict[str, list[int]]:
    """The texts of requests that all come at once."""
    for request in requests:
        engine.submit(request)
    done: dict[str, list[int]] = {}
    while engine.busy:
        done |= {o.request_id: list(o.completion.tokens) for o in engine.step() if o.completion}
        if (total := engine.target.cache.total) is not None:
            assert engine.target.cache.layout.used <= total
    return done


def asked(seed: int, temperature: float = 0.0) -> list[Request]:
    """Long ones among short ones."""
    sampling = Sampling(temperature=temperature, top_p=0.9, seed=5)
    news = (150, 20, 140, 9, 160, 70, 11)
    return [
        Request(p, sampling=sampling, max_new_tokens=news[i], ignore_eos=True, id=f"r{i}")
        for i, p in enumerate(prompts(len(news), seed=seed))
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("layout", "kind"),
    [
        ("lazy", "causal"),
        ("whole", "causal"),
        ("paged", "causal"),
        ("lazy", "trigram"),
        ("paged", "trigram"),
        ("paged", "blended"),
    ],
)
def test_who_waits_in_the_middle_of_its_text_goes_on_with_the_same_text(
    pair: Pair, layout: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    laid_out(monkeypatch, layout)
    engine = engine_of(pair, 8, kind)
    done = served(engine, asked(3))
    assert engine.stats.set_aside and engine.stats.waited_for_memory
    assert engine.target.cache.layout.used == 0
    for request in asked(3):
        assert done[request.id] == said(pair, request)


def test_sampled_texts_are_those_of_an_engine_without_a_bound(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    free = served(engine_of(pair, None), asked(4, temperature=1.0))
    laid_out(monkeypatch, "paged")
    engine = engine_of(pair, 10)
    assert served(engine, asked(4, temperature=1.0)) == free and engine.stats.set_aside


def test_captured_passes_go_on_as_blocks_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    as_on_a_gpu(monkeypatch)
    laid_out(monkeypatch, "paged")
    pair = random_pair("llama")
    engine = engine_of(pair, 10)
    done = served(engine, asked(3))
    passes = engine.target.forward.compiled
    assert engine.stats.set_aside and passes is not None and passes.graphs  # type: ignore[attr-defined]
    for request in asked(3):
        assert done[request.id] == said(pair, request)


def test_who_is_cancelled_while_it_waits_gives_its_blocks_back(pair: Pair) -> None:
    engine = engine_of(pair, 10)
    for request in asked(3):
        engine.submit(request)
    while not (waiting := [reader for reader in engine.prefill_queue.readers if reader.waits]):
        engine.step()
    name, length = waiting[0].row.request.id, waiting[0].row.length
    used = engine.target.cache.layout.used
    assert engine.cancel(name) and engine.target.cache.layout.used < used - length // BLOCK + 1
    ended = {}
    while engine.busy:
        ended |= {each.request_id: each.completion for each in engine.step() if each.completion}
    assert ended.pop(name).finish_reason == "cancelled" and len(ended) >= 4
    assert all(each.finish_reason == "length" for each in ended.values())


def test_short_ones_share_what_long_ones_could_take(pair: Pair) -> None:
    """Eight sequences that may become long have room for one of them that does: they end early, and none waits."""
    request = Request((3, 4, 5), max_new_tokens=190, ignore_eos=True)
    text = alone(pair.target.module, request.prompt_tokens, 20)
    end = next(token for i, token in enumerate(text) if i > 5 and token not in text[:i])
    engine = engine_of(pair, 7 + 8)
    done = served(engine, [replace(request, id=str(i), stop_token_ids=(end,)) for i in range(8)])
    assert not engine.stats.set_aside and not engine.stats.waited_for_memory
    assert all(tokens == text[: len(tokens)] and tokens[-1] == end for tokens in done.values())


def test_swaps_between_set_aside_and_return_change_no_text(pair: Pair) -> None:
    """Its draft reads its text again: other weights of the draft find nothing stale."""
    engine = engine_of(pair, 10)
    other = random_pair("llama", noise=0.6).draft
    for request in asked(3):
        engine.submit(request)
    done: dict[str, list[int]] = {}
    while engine.busy:
        done |= {each.request_id: list(each.completion.tokens) for each in engine.step() if each.completion}
        if any(reader.waits for reader in engine.prefill_queue.readers):
            engine.pool.default.body.exchange(other.decoder(1, 8), owned=False)
    assert engine.stats.set_aside
    for request in asked(3):
        assert done[request.id] == said(pair, request)


@pytest.mark.parametrize("seed", range(20))
def test_every_sequence_can_come_to_its_end(seed: int) -> None:
    """Sequences of random lengths that all want all: there is always one that is given what it wants next."""
    chance = random.Random(seed)
    cache = RaggedCache(1, 6, 200, torch.device("cpu"), torch.float32, 200)
    cache.bound(chance.randint(8, 16))
    manager = KVCacheManager(cache, 196)
    lines = [Request((1,) * chance.randint(1, 90), max_new_tokens=chance.randint(1, 100)) for _ in range(30)]
    waiting = [SequenceState(line, line, FixedRouter().route(line), 196) for line in lines]
    rows: list[SequenceState] = []
    length: dict[int, int] = {}
    ended = 0
    while rows or waiting:
        if waiting and len(rows) < 6 and manager.allocate_slots(len(rows), [*rows, waiting[0]], waiting[0].prompt_len):
            length[id(waiting[0])] = waiting[0].prompt_len
            rows.append(waiting.pop(0))
        went_on = False
        for row in chance.sample(rows, len(rows)):
            if manager.allocate_slots(rows.index(row), rows, length[id(row)]):
                length[id(row)], went_on = min(row.end, length[id(row)] + chance.randint(1, 40)), True
        assert went_on and cache.layout.used <= (cache.total or 0)
        for row in [row for row in rows if length[id(row)] == row.end]:
            index, last = rows.index(row), rows.pop()
            if last is row:
                cache.release_row(index)
            else:
                cache.layout.exchange(len(rows), index)
                cache.release_row(len(rows))
                rows[index] = last
            ended += 1
    assert ended == 30 and cache.layout.used == 0
