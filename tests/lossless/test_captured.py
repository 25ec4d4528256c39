"""Texts by passes of fixed shapes are the target's, as rows come and go, and sampled ones follow its distribution."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from osd.drafters.residency import LoadedVersion
from osd.engine.engine import Engine
from osd.models.captured_pass import CapturedPass
from osd.models.decoder import Decoder
from osd.models.pair import Pair
from storage.records import DEFAULT_DRAFT, Request
from storage.sampling import Sampling
from tests.lossless.test_distribution import LEVEL, exact, p_value, sample
from tests.support.captured import as_on_a_gpu
from tests.support.models import alone, model_of, noisy, prompts, random_pair
from tests.support.settings import settings_of


@pytest.fixture(autouse=True)
def captured() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        as_on_a_gpu(patch)
        yield


def engine_of(pair: Pair, **settings: object) -> Engine:
    return Engine(pair, settings_of(**{"serve__max_batch": 4, "serve__max_length": 160} | settings))


def served(engine: Engine, asked: list[Request]) -> list[list[int]]:
    done = {completion.request.id: list(completion.tokens) for completion in engine.run(asked)}
    return [done[request.id] for request in asked]


def shapes(decoder: Decoder) -> list[tuple[int, int, int]]:
    """Rows, width and drafts of the graphs that are used."""
    compiled = decoder.forward.compiled
    assert isinstance(compiled, CapturedPass)
    return [(shape.rows, shape.width, shape.drafts) for shape, graph in compiled.graphs.items() if graph]


@pytest.mark.parametrize(
    ("kind", "rule"), [("llama", "fixed"), ("llama", "goodput"), ("qwen3", "gammatune"), ("gpt_neox", "fixed")]
)
def test_greedy_texts(kind: str, rule: str) -> None:
    pair = random_pair(kind)
    asked = [Request(p, max_new_tokens=30 + 9 * i) for i, p in enumerate(prompts(9, seed=3))]
    stake = {"gamma__goodput__stake": 1e6}  # what a random draft loses is paid for, however dear a pass is just now
    engine = engine_of(pair, gamma__rule=rule, gamma__initial=4, **stake)
    assert served(engine, asked) == [alone(pair.target.module, r.prompt_tokens, r.max_new_tokens) for r in asked]
    assert shapes(engine.target) and shapes(engine.pool.decoder)
    if rule == "fixed":
        assert 4 in {drafts for _, _, drafts in shapes(engine.pool.decoder)}, "one graph a round"


@pytest.mark.parametrize("drafter", ["blended", "trigram"])
def test_with_other_drafters(drafter: str) -> None:
    pair = random_pair("llama")
    asked = [Request(p * 2, max_new_tokens=40) for p in prompts(5, seed=4)]
    engine = engine_of(pair, drafters__kind=drafter)
    assert served(engine, asked) == [alone(pair.target.module, r.prompt_tokens, 40) for r in asked]


@pytest.mark.parametrize(
    ("sampling", "gamma", "batch"),
    [
        (Sampling(1.0), 2, 8),
        pytest.param(Sampling(0.7, top_k=6, top_p=0.9), 2, 3, marks=pytest.mark.long),
        pytest.param(Sampling(1.0, min_p=0.1), 2, 1, marks=pytest.mark.long),
    ],
)
def test_two_tokens_follow_the_target(sampling: Sampling, gamma: int, batch: int) -> None:
    """The odds of a false alarm are at most 3 in 10,000."""
    pair = random_pair("llama", noise=0.35, vocabulary=9)
    assert p_value(sample(pair, sampling, gamma, batch), exact(pair, sampling)) > LEVEL


def test_a_seed_repeats_its_text_beside_any_neighbours() -> None:
    pair = random_pair("llama")
    asked = [
        Request(p, max_new_tokens=40, sampling=Sampling(0.9, top_p=0.95 if i % 2 else None, seed=i))
        for i, p in enumerate(prompts(6, seed=5))
    ]
    rule = {"gamma__rule": "fixed", "gamma__initial": 4}
    together = served(engine_of(pair, **rule), asked)
    assert together == [served(engine_of(pair, serve__max_batch=1, **rule), [request])[0] for request in asked]


def test_weights_that_are_swapped_in_are_copied_over_those_that_graphs_are_over() -> None:
    pair = random_pair("llama")
    first = {name: weight.clone() for name, weight in pair.draft.module.named_parameters()}
    engine = engine_of(pair, gamma__rule="fixed", gamma__initial=4)
    asked = [Request(p, max_new_tokens=60) for p in prompts(4, seed=6)]
    for request in asked:
        engine.submit(request)
    done, graphs = {}, []
    for turn, noise in enumerate((0.01, 3.0, 0.0)):
        done |= {p.request_id: list(p.completion.tokens) for _ in range(12) for p in engine.step() if p.completion}
        arrived = model_of(noisy(pair.target.module, noise, seed=turn))
        decoder = arrived.decoder(1, engine.pool.decoder.cache.length)
        loaded = LoadedVersion(DEFAULT_DRAFT, f"version-{turn}", arrived.limit, f"d{turn}", decoder, owned=True)
        assert engine.draft_manager.residence.let_in(loaded) == "taken"
        graphs.append(engine.pool.decoder.forward.compiled)
        text = torch.tensor([[5, 9, 2]])
        said = engine.pool.decoder.beside(1, 8).logits(text, [0])
        torch.testing.assert_close(said, arrived.module(text).logits, rtol=1e-4, atol=1e-4)
    while engine.busy:
        done |= {p.request_id: list(p.completion.tokens) for p in engine.step() if p.completion}
    assert [done[r.id] for r in asked] == [alone(pair.target.module, r.prompt_tokens, 60) for r in asked]
    assert graphs[0] is graphs[1] is graphs[2], "captured once, for all versions after the first"
    assert all(torch.equal(first[name], weight) for name, weight in pair.draft.module.named_parameters()), (
        "what the pair has is not written over"
    )
