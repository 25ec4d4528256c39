"""Finished texts are scored with every draft that could have served them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import osd.drafters.scoring
from osd.drafters.loaded_draft import LoadedDraft
from osd.drafters.scoring import drawn_from, matches, part_of, reader_of, score
from osd.engine.engine import Engine
from osd.models.decoder import Decoder
from osd.models.pair import Pair
from osd.verification.warping import Warp
from router.auto import AutoRouter
from router.base import Decision
from router.fixed import FixedRouter
from router.throughput import Costs, TextScore
from storage.records import Outcome, Request, Route
from storage.sampling import Sampling
from storage.settings import RouterSettings
from tests.support.adapters import LINEAR, adapt, let_in, lora, read, save
from tests.support.models import model_of, noisy, prompts, random_pair
from tests.support.settings import settings_of

ROUTE = Route("default", "default", candidates=("good", "adapted", "absent"))


class Listening:
    """One route with several drafts; hears what they scored."""

    reads_text = False

    def __init__(self) -> None:
        self.heard: dict[str, Mapping[str, TextScore]] = {}

    def route(self, request: Request) -> Decision:
        return Decision(ROUTE)

    def observe(self, request: Request, decision: Decision, outcomes: Sequence[Outcome]) -> None:
        pass

    def scored(self, request_id: str, seen: Mapping[str, TextScore]) -> None:
        self.heard[request_id] = seen


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    pair = random_pair("llama", noise=0.4)
    made = Engine(pair, settings_of(serve__max_length=96, gamma__rule="fixed", serve__max_batch=4), router=Listening())
    let_in(made, "good", model_of(noisy(pair.target.module, 0.02, seed=9)))
    let_in(made, "adapted", adapter=read(save(adapted(pair), tmp_path / "adapter"), pair.draft))
    return made


def adapted(pair: Pair) -> Any:
    return adapt(pair.draft.module, lora(LINEAR["llama"], 3), 0, size=0.4)


def heard(engine: Engine) -> dict[str, Mapping[str, TextScore]]:
    router = engine.router
    assert isinstance(router, Listening)
    return router.heard


def test_every_draft_in_memory_is_scored_and_the_better_one_scores_better(engine: Engine) -> None:
    asked = [Request(p, max_new_tokens=20) for p in prompts(8, seed=3)]
    list(engine.run(asked))
    while engine.scorer.work(idle=True):
        pass
    assert set(heard(engine)) == {request.id for request in asked}
    for seen in heard(engine).values():
        assert set(seen) == {"default", "good", "adapted"}
        assert all(one.judged == 20 for one in seen.values())
    mean = {d: sum(seen[d].alpha for seen in heard(engine).values()) for d in ("default", "good")}
    assert mean["good"] > mean["default"]


def test_a_score_is_where_the_drafts_own_first_choice_is_the_text(engine: Engine) -> None:
    """Against each module's own forward pass; the adapter by PEFT's."""
    (done,) = engine.run([Request(prompts(1, seed=5)[0], max_new_tokens=24)])
    text = [*done.request.prompt_tokens, *done.tokens]
    for name, module in (("default", engine.pair.draft.module), ("adapted", adapted(engine.pair))):
        loaded = engine.pool.loaded_drafts[name]
        logits = module(torch.tensor([text])).logits[0]
        expected = (logits.argmax(-1)[:-1] == torch.tensor(text[1:]))[-24:].tolist()
        assert matches(reader_of(loaded, len(text)), text, 24) == expected
        assert score(loaded, done) == TextScore(sum(expected) / 24, 24)


@torch.inference_mode()
def test_a_sampled_text_is_scored_by_the_chance_that_a_drafted_token_is_accepted(engine: Engine) -> None:
    """Σ min(p, q) after the request's warping, against both modules' own forward passes, for every candidate."""
    sampling = Sampling(0.8, top_p=0.9, seed=3)
    (done,) = engine.run([Request(prompts(1, seed=5)[0], max_new_tokens=24, sampling=sampling)])
    assert engine.scorer.work(idle=True)
    seen = heard(engine)[done.request.id]
    text = torch.tensor([[*done.request.prompt_tokens, *done.tokens]])
    warp = Warp([sampling], engine.pair.vocab_size, engine.pair.device)
    p = warp(engine.pair.target.module(text).logits[:, -25:-1])
    for name, module in (("default", engine.pair.draft.module), ("adapted", adapted(engine.pair))):
        q = warp(module(text).logits[:, -25:-1])
        assert seen[name].judged == 24
        assert seen[name].alpha == pytest.approx(float(torch.minimum(p, q).sum()) / 24, abs=1e-4)
    target = engine.pool.loaded_drafts["good"]
    assert score(target, done, drawn_from(engine.target, done)).alpha == pytest.approx(seen["good"].alpha, abs=1e-6)


def test_of_a_long_drawn_text_the_first_tokens_are_scored(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of its distributions are in memory together."""
    monkeypatch.setattr("osd.drafters.scoring.SCORED", 5)
    for temperature, count in ((0.0, 12), (1.0, 5)):
        (completion,) = engine.run([Request((1, 2, 3), 12, Sampling(temperature), ignore_eos=True)])
        assert part_of(completion).tokens == completion.tokens[:count]


def test_reading_leaves_rows_that_are_being_served_alone(engine: Engine) -> None:
    alone = next(iter(engine.run([Request(prompts(1)[0], max_new_tokens=30)])))
    engine.submit(Request(prompts(1)[0], max_new_tokens=30))
    texts = []
    while engine.busy:
        texts += [p.completion for p in engine.step() if p.completion]
        score(engine.pool.loaded_drafts["default"], alone)
        score(engine.pool.loaded_drafts["adapted"], alone)
    assert texts[0].tokens == alone.tokens
    assert [r.accepted for r in texts[0].rounds] == [r.accepted for r in alone.rounds]


def test_reading_leaves_nothing_behind(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and values go at once, without waiting for Python's collector."""
    (done,) = engine.run([Request(prompts(1, seed=5)[0], max_new_tokens=24)])
    readers: list[Decoder] = []

    def kept(loaded: LoadedDraft, length: int) -> Decoder:
        readers.append(reader_of(loaded, length))
        return readers[-1]

    loaded = engine.pool.loaded_drafts["default"]
    matches(reader := kept(loaded, 64), [*done.request.prompt_tokens, *done.tokens], 24)
    assert reader.cache.bytes > 0
    monkeypatch.setattr(osd.drafters.scoring, "reader_of", kept)
    score(loaded, done)
    assert len(readers) == 2 and readers[1].cache.bytes == 0


def test_a_route_with_one_draft_is_not_scored() -> None:
    pair = random_pair("llama")
    made = Engine(pair, settings_of(serve__max_length=96), router=FixedRouter())
    list(made.run([Request(prompts(1)[0], max_new_tokens=8)]))
    assert not made.scorer.work(idle=True)


def test_the_router_learns_from_what_is_served_which_draft_is_worth_more(tmp_path: Path) -> None:
    """The real loop: costs measured by the engine, texts scored in idle moments, the choice by weights."""
    pair = random_pair("llama", noise=1.0)
    routes = FixedRouter([Route("default", "default", candidates=("good",))])
    costs = Costs(0.1, [1.0 + 0.01 * gamma for gamma in range(9)])  # of the engine they would differ from run to run
    router = AutoRouter(routes, lambda _: costs, RouterSettings(choose_warm_up=4))
    made = Engine(pair, settings_of(serve__max_length=96, gamma__rule="fixed", serve__max_batch=2), router=router)
    let_in(made, "good", model_of(noisy(pair.target.module, 0.01, seed=9)))
    for prompt in prompts(24, seed=6):
        list(made.run([Request(prompt, max_new_tokens=16)]))
        made.scorer.work(idle=True)
    chosen = [made.admission.router.choose(r := Request(p), routes.route(r), 5.0).draft for p in prompts(5, seed=7)]  # type: ignore[attr-defined]
    assert chosen == ["good"] * 5
    assert made.pass_costs.of("good", 4) is not None
