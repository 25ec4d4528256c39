"""A draft that knows fewer positions than the target stops drafting there: the text goes on, and so does whoever drafts
without a model."""

from __future__ import annotations

import pytest

from osd.engine.engine import Engine
from osd.models.pair import Pair
from storage.records import Request
from tests.support.models import alone, model_of, noisy, prepared, prompts, random_module
from tests.support.settings import settings_of

KNOWN, COUNT = 32, 40


@pytest.fixture(scope="module")
def pair() -> Pair:
    """A target of 256 positions, and a draft that learned no more than KNOWN."""
    target = random_module("gpt2")
    config = noisy(target).config
    config.n_positions = KNOWN
    return Pair(model_of(target, "target"), model_of(prepared(config), "draft"), None, frozenset())


@pytest.mark.parametrize("kind", ["causal", "blended", "trigram", "lookup"])
def test_the_text_goes_on_beyond_the_draft(pair: Pair, kind: str) -> None:
    engine = Engine(pair, settings_of(
        drafters__kind=kind, serve__max_batch=3, serve__max_length=2048, gamma__rule="fixed", gamma__initial=4,
    ))  # fmt: skip
    assert engine.limit == pair.limit == 256
    asked = [
        Request(p * times, max_new_tokens=COUNT) for p, times in zip(prompts(4, seed=3), (1, 2, 9, 4), strict=True)
    ]
    done = {c.request.id: c for c in engine.run(asked)}
    drafted = {False: 0, True: 0}
    for request in asked:
        told = done[request.id]
        assert list(told.tokens) == alone(pair.target.module, request.prompt_tokens, COUNT)
        at = len(request.prompt_tokens)
        for each in told.rounds:
            drafted[at >= KNOWN] += each.drafted
            at += each.emitted
    assert drafted[False]
    assert bool(drafted[True]) is (kind not in ("causal", "blended"))
