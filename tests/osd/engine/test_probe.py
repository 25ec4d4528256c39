"""The passes that are timed at engine start: with every drafter, with drafts cut from a target, rows of any length."""

from __future__ import annotations

from dataclasses import replace

import pytest

from osd.engine.engine import Engine
from osd.models.needs_draft import MODEL_DRAFTERS
from osd.models.pair import Pair
from osd.models.small_draft import cut
from osd.models.target_only import NullModel
from storage.records import Request
from tests.support.models import alone, model_of, prompts, random_module, random_pair
from tests.support.settings import settings_of

KINDS = ("causal", "blended", "lookup", "trigram")
FAMILIES = ("mistral", "gpt2", "gemma2", "opt")
"""Families whose passes differ: fused, with learned positions, with windows, with an offset."""


def cut_pair(family: str) -> Pair:
    module = random_module(family)
    small, _ = cut(module, family, 1)
    return Pair(model_of(module, "target"), model_of(small, "small"), None, frozenset())


def serves(pair: Pair, **given: object) -> Engine:
    """An engine that was probed, and then serves as one that was not."""
    engine = Engine(pair, settings_of(serve__max_batch=3, gamma__rule="goodput", gamma__max=6, **given))
    engine.probe()
    asked = [Request(prompt, max_new_tokens=6) for prompt in prompts(4, seed=2, longest=9)]
    done = {each.request.id: each for each in engine.run(asked)}
    for request in asked:
        assert list(done[request.id].tokens) == alone(pair.target.module, request.prompt_tokens, 6)
    return engine


@pytest.mark.parametrize("kind", KINDS)
def test_it_serves_with_every_drafter(kind: str) -> None:
    pair = random_pair("llama")
    for given in (pair,) if kind in MODEL_DRAFTERS else (pair, replace(pair, draft=NullModel(pair.device))):
        assert serves(given, drafters__kind=kind).costs.verify_ms(3, 15) is not None


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("longest", [16, 64, 65, 200])
def test_a_draft_that_is_cut_from_its_target_is_timed_in_rows_of_any_length(family: str, longest: int) -> None:
    engine = Engine(cut_pair(family), settings_of(serve__max_length=longest))
    engine.probe()
    assert engine.costs.known == (longest >= 64)
    serves(cut_pair(family), serve__max_length=longest)


def test_it_leaves_caches_as_they_are_and_nothing_counted() -> None:
    pair = random_pair("llama")
    engine = Engine(pair, settings_of(serve__max_batch=16, serve__cache_mb=1, serve__max_length=128))
    before = engine.target.cache.bytes, engine.pool.decoder.cache.rows
    engine.probe()
    assert (engine.target.cache.bytes, engine.pool.decoder.cache.rows) == before
    assert engine.costs.rounds == 0 and engine.costs.known and engine.stats.steps == 0
    assert engine.costs.draft_ms(8, 4) and engine.costs.reading_ms >= 0


def test_a_rule_that_weighs_no_costs_has_nothing_timed() -> None:
    engine = Engine(random_pair("llama"), settings_of(gamma__rule="fixed"))
    engine.probe()
    assert not engine.costs.known
