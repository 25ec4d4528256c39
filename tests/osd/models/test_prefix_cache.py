"""Beginnings of prompts that were read before are copied, and nothing else changes."""

from __future__ import annotations

import pytest
import torch

from osd.engine.engine import Engine
from osd.models.prefix_cache import BLOCK, PrefixCache
from storage.records import Request
from storage.settings import Settings
from tests.osd.engine.test_prefill_queue import counted, long_prompts, texts
from tests.support.caches import laid_out
from tests.support.models import CONFIGS, alone, model_of, noisy, random_pair
from tests.support.settings import settings_of

SYSTEM = long_prompts((100,), seed=9)[0]
COPIED = 100 // BLOCK * BLOCK


def settings(**more: object) -> Settings:
    return settings_of(
        **{"serve__max_batch": 4, "serve__max_length": 240, "gamma__rule": "fixed", "serve__prefix_cache_mb": 1} | more
    )


def asked(count: int, seed: int = 0, tenant: str = "default") -> list[Request]:
    tails = long_prompts(tuple(range(3, 3 + 7 * count, 7)), seed)
    return [Request(SYSTEM + tail, max_new_tokens=12, tenant=tenant) for tail in tails]


@pytest.mark.parametrize("kind", CONFIGS)
def test_every_architecture_says_the_same_after_a_copied_beginning(kind: str) -> None:
    pair = random_pair(kind)
    requests = [*asked(6), *(Request(p, 9) for p in long_prompts((1, 40, 200)))]
    expected = [alone(pair.target.module, r.prompt_tokens, r.max_new_tokens) for r in requests]
    for batch in (1, 4):
        engine = Engine(pair, settings(serve__max_batch=batch, serve__prefill_tokens=64))
        assert texts(engine, requests) == expected and texts(engine, [*asked(6)]) == expected[:6]
        queried = 2 * sum(len(r.prompt_tokens) - 1 for r in requests[:6]) + 0 + 39 + 199
        assert engine.stats.prefix_queried == queried
        assert engine.stats.prefix_hits >= 8 * COPIED
        assert engine.stats.read_tokens + engine.stats.prefix_hits >= queried  # what was read while another read it


@pytest.mark.parametrize("layout", ["lazy", "paged"])
def test_target_and_draft_compute_a_beginning_once(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    laid_out(monkeypatch, layout)
    pair = random_pair()
    engine = Engine(pair, settings(serve__max_batch=1))
    with counted(engine.target) as target, counted(engine.pool.decoder) as draft:
        texts(engine, asked(3))
    lengths = [len(r.prompt_tokens) - 1 for r in asked(3)]
    assert target == draft == [lengths[0], *(n - COPIED for n in lengths[1:])]
    assert engine.stats.prefix_hits == 2 * COPIED


@torch.inference_mode()
def test_copied_keys_and_values_are_those_that_were_kept() -> None:
    """So greedy text after a copy is that of the row that was read, bit for bit."""
    engine = Engine(random_pair(), settings(serve__max_batch=1))
    cache = engine.target.cache
    engine.submit(asked(1)[0])
    engine.step()
    before = [kept[:, :COPIED].clone() for kept in cache.kept]
    for kept in cache.kept:
        kept.zero_()
    assert engine.prefill_queue.prefixes is not None
    assert engine.prefill_queue.prefixes.fetch(0, SYSTEM, ("default", "")) == COPIED
    assert all(torch.equal(kept[:, :COPIED], own) for kept, own in zip(cache.kept, before, strict=True))


@pytest.mark.parametrize("shared", [False, True])
def test_tenants_share_only_where_they_may(shared: bool) -> None:
    pair = random_pair()
    engine = Engine(pair, settings(serve__max_batch=1, serve__prefix_shared=shared))
    texts(engine, asked(1, tenant="one"))
    texts(engine, asked(1, tenant="two"))
    assert engine.stats.prefix_hits == (COPIED if shared else 0)


def test_another_version_of_the_draft_reads_anew() -> None:
    pair = random_pair()
    engine = Engine(pair, settings(serve__max_batch=1))
    texts(engine, asked(1))
    engine.pool.default.version = "next"
    other = model_of(noisy(pair.target.module, 0.01))
    engine.pool.decoder.forward = other.build(other.module)
    with counted(engine.target) as target, counted(engine.pool.decoder) as draft:
        assert texts(engine, asked(1)) == [alone(pair.target.module, asked(1)[0].prompt_tokens, 12)]
    assert sum(target) < BLOCK < sum(draft) == len(asked(1)[0].prompt_tokens) - 1


def test_without_memory_nothing_is_kept() -> None:
    engine = Engine(random_pair(), settings(serve__prefix_cache_mb=0))
    texts(engine, asked(2))
    assert engine.prefill_queue.prefixes is None and engine.pool.default.body.drafter.prefixes is None
    assert engine.stats.prefix_queried == engine.stats.prefix_hits == 0


@torch.inference_mode()
def test_the_block_unused_longest_makes_room() -> None:
    decoder = random_pair().target.decoder(1, 240)
    block = 2 * 2 * BLOCK * 2 * 8 * 4  # layers, keys and values, tokens, heads, width, bytes
    prefixes = PrefixCache(decoder.cache, 5 * block + 1, shared=False)
    first, second, third = long_prompts((100, 70, 170), seed=3)

    def read(which: tuple[int, ...]) -> None:
        decoder.prefill(0, which[:-1])
        prefixes.keep(0, which, "owner")

    def known(which: tuple[int, ...]) -> int:
        return prefixes.fetch(0, which, "owner") // BLOCK

    read(first), read(second)  # 3 and 2 blocks fill it
    assert (known(first), known(second), prefixes.blocks) == (3, 2, 5)
    read((*first[:64], *second))  # two of first's, and two new: first's last one goes, and one more
    assert (known(first), known(second), prefixes.blocks) == (2, 1, 5)
    read(third)  # longer than all that there is
    assert (known(third), known(first), known(second), prefixes.blocks) == (5, 0, 0, 5)
    decoder.prefill(0, third[:-1])
    expected = [kept[:, : 5 * BLOCK].clone() for kept in decoder.cache.kept]
    prefixes.fetch(0, third, "owner")
    for kept, own in zip(decoder.cache.kept, expected, strict=True):
        torch.testing.assert_close(kept[:, : 5 * BLOCK], own)


def test_a_prompt_that_was_read_whole_still_feeds_its_last_token() -> None:
    pair = random_pair()
    engine = Engine(pair, settings(serve__max_batch=1))
    whole = Request(long_prompts((2 * BLOCK + 1,))[0], 5)
    same = Request(whole.prompt_tokens, 5)
    cut = Request(whole.prompt_tokens[: 2 * BLOCK], 5)
    for request in (whole, same, cut):
        assert texts(engine, [request]) == [alone(pair.target.module, request.prompt_tokens, 5)]
    assert engine.stats.prefix_hits == 2 * BLOCK + BLOCK
