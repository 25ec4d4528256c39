"""With tokens from a table in the draft's chain nothing changes but the speed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from osd.demo.runner.stream import blended_hits
from osd.drafters.base import DraftRequest
from osd.drafters.blended import BlendedDrafter
from osd.drafters.chain import Chain
from osd.drafters.ngram.predictions import NO_PREDICTION, PREDICTIONS, SEEN, new_rates
from osd.drafters.table_override import TableOverride
from osd.engine.engine import Engine
from osd.gamma.factory import CONTROLLERS
from osd.gamma.planner import Read
from osd.models.acceptance_head import AcceptanceHead, HeadConfig, HeadPass
from osd.models.pair import Pair
from osd.sequence import RequestOutput, SequenceState
from osd.verification.result import VerifyResult
from storage.records import Request
from storage.sampling import Sampling
from tests.lossless.test_distribution import LEVEL, PROMPT, exact, p_value
from tests.lossless.test_lossless import serve
from tests.support.models import CONFIGS, alone, prompts, random_pair
from tests.support.settings import settings_of

COUNT = 24


def engine_of(pair: Pair, **chosen: object) -> tuple[Engine, BlendedDrafter]:
    base = {"serve__max_batch": 4, "serve__max_length": 128, "gamma__rule": "fixed", "gamma__initial": 4}
    base["drafters__kind"] = "blended"
    engine = Engine(pair, settings_of(**{**base, **chosen}))
    assert isinstance(engine.drafting, BlendedDrafter)
    return engine, engine.drafting


@pytest.mark.parametrize("kind", CONFIGS)
def test_every_architecture_in_ragged_batches(kind: str) -> None:
    """Requests come again, so that the table knows what follows."""
    pair = random_pair(kind)
    asked = [Request(p, max_new_tokens=8 + 4 * i) for i, p in enumerate(prompts(6, seed=3))]
    expected = [alone(pair.target.module, r.prompt_tokens, r.max_new_tokens) for r in asked]
    for batch in (1, 3, 8):
        engine, drafter = engine_of(pair, serve__max_batch=batch)
        for turn in range(4):
            again = [replace(request, id=f"{turn}/{i}") for i, request in enumerate(asked)]
            assert serve(engine, again) == expected, f"batch {batch}"
        assert drafter.put_in_right > 40


@pytest.mark.parametrize("controller", CONTROLLERS)
def test_every_controller(controller: str) -> None:
    pair = random_pair("llama", eos=5, noise=0.6)
    asked = [Request(p, max_new_tokens=COUNT) for p in prompts(4, seed=4) * 4]
    expected = [alone(pair.target.module, r.prompt_tokens, COUNT, eos=5) for r in asked]
    engine, _ = engine_of(pair, gamma__rule=controller, gamma__initial=3)
    assert serve(engine, asked) == expected


def test_the_draft_reads_what_it_was_not_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever the draft is asked, its logits are those of a fresh pass over the whole text and the chain so far, also
    after rounds in which the table alone drafted."""
    pair, passes, unasked = random_pair("llama", noise=3.0), list[int](), list[int]()
    engine, _ = engine_of(pair, serve__max_batch=3)
    drafter = engine.pool.default.body.drafter
    feeding, following, drafting = drafter._feed, drafter._logits, drafter.propose
    fed_last: list[tuple[DraftRequest, Chain]] = []

    def noted(request: DraftRequest, chain: Chain) -> object:
        fed_last[:] = [(request, chain)]
        return feeding(request, chain)

    def following_checked(fed: object) -> Tensor:
        logits: Tensor = following(fed)
        request, chain = fed_last[0]
        for i, (row, goes) in enumerate(zip(request.rows, chain.going, strict=True)):
            if goes:
                text = row.tokens + [int(tokens[i]) for tokens in chain.tokens]
                fresh = pair.draft.module(input_ids=torch.tensor([text]), use_cache=False).logits[0, -1]
                torch.testing.assert_close(logits[i, 0], fresh, rtol=1e-4, atol=1e-4)
                passes.append(chain.size - chain.fed)
        return logits

    def counted(request: DraftRequest) -> object:
        draft = drafting(request)
        unasked.append(draft.size - draft.passes)
        return draft

    monkeypatch.setattr(drafter, "_feed", noted)
    monkeypatch.setattr(drafter, "_logits", following_checked)
    monkeypatch.setattr(drafter, "propose", counted)
    expected = {p: alone(pair.target.module, p, 40) for p in prompts(5, seed=8)}
    asked = [Request(p, max_new_tokens=40) for p in list(expected) * 5]
    assert serve(engine, asked) == [expected[request.prompt_tokens] for request in asked]
    assert max(passes) > 1 and max(unasked) == 4  # caught up within a chain; a whole chain came from the table


@torch.inference_mode()
def test_a_rule_hears_how_likely_the_token_before_is_to_be_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the head where the draft has read it; else by whom it is from. Never what is thought of this step's token."""
    pair = random_pair("llama", noise=0.5)
    engine, drafter = engine_of(pair, gamma__rule="specdecpp", gamma__specdecpp__threshold=0.999)
    head = AcceptanceHead(HeadConfig(32, 0, 1.0, "", ""))
    torch.nn.init.normal_(head.out.weight)
    engine.pool.head = HeadPass(head, pair.device)
    steps: list[tuple[bool, float, float]] = []
    steer = engine.planner.should_continue

    def heard(rows: Sequence[SequenceState], lengths: list[int], drafted: int, read: Read) -> None:
        asked = getattr(read.__self__, "_signals", True) is not None
        steps.append((asked, read("acceptance")[0], read("peak")[0]))
        steer(rows, lengths, drafted, read)

    seen = {True: 0, False: 0}

    def compare(
        rows: Sequence[SequenceState], progress: Sequence[RequestOutput], verdict: VerifyResult, _: object
    ) -> None:
        text = rows[0].tokens[: -len(progress[0].tokens)] + verdict.drafted[0]
        for i in range(1, len(steps)):
            asked, said, _peak = steps[i]
            read = torch.tensor([text[: len(text) - len(verdict.drafted[0]) + i]])
            hidden = pair.draft.module.model(read).last_hidden_state[:, -1]
            expected = float(engine.pool.head(hidden)) if asked else steps[i - 1][2]  # type: ignore[misc]
            assert said == pytest.approx(expected, abs=1e-4)
            seen[asked] += 1
        steps.clear()

    monkeypatch.setattr(engine.planner, "should_continue", heard)
    engine.listeners.append(compare)
    for turn in range(4):
        list(engine.run([Request((3, 5, 8), max_new_tokens=40, id=str(turn))]))
    assert min(seen.values()) > 20 and drafter.put_in_right > 10


def test_a_rule_hears_that_there_is_no_head() -> None:
    engine, _ = engine_of(random_pair("llama", noise=0.5), gamma__rule="specdecpp")
    for turn in range(4):
        (done,) = engine.run([Request((3, 5, 8), max_new_tokens=40, id=str(turn))])
        assert max(one.drafted for one in done.rounds) == engine.settings.gamma.initial


def test_a_request_that_must_not_be_learned_from_teaches_the_table_nothing() -> None:
    engine, drafter = engine_of(random_pair("llama"))
    asked = [Request(p, max_new_tokens=COUNT, learn=False) for p in prompts(3, seed=2)]
    serve(engine, asked)
    assert drafter.proposer.keeper.table.learned == 0  # type: ignore[attr-defined]
    serve(engine, [replace(request, id=f"{request.id}+", learn=True) for request in asked])
    assert drafter.proposer.keeper.table.learned > 0  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def tiny() -> Pair:
    """With a draft that is worse than a table."""
    return random_pair("llama", noise=3.0, vocabulary=9)


@pytest.fixture(autouse=True)
def trusting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where samples are drawn, the table is trusted from the start."""
    if "tiny" in request.fixturenames:
        trusted = np.full((2, PREDICTIONS, 2), 1e6)
        monkeypatch.setattr("osd.drafters.blended.new_rates", lambda: new_rates()._replace(predictions=trusted.copy()))


def sampled(pair: Pair, sampling: Sampling) -> tuple[Counter[tuple[int, ...]], BlendedDrafter]:
    engine, drafter = engine_of(pair, serve__max_batch=64, serve__max_length=32, gamma__initial=2)
    plain = Request(PROMPT, max_new_tokens=3, ignore_eos=True)
    asked = (replace(plain, id=str(seed), sampling=replace(sampling, seed=seed)) for seed in range(1500))
    return Counter(completion.tokens[:2] for completion in engine.run(asked)), drafter


@pytest.mark.parametrize("sampling", [Sampling(0.7), Sampling(1.0), Sampling(1.0, top_k=4), Sampling(1.0, top_p=0.8)])
def test_samples_follow_the_target(tiny: Pair, sampling: Sampling) -> None:
    """As in test_distribution.py, at level 1e-4: a false alarm of these four has odds of 1 in 2,500 for fresh seeds."""
    seen, drafter = sampled(tiny, sampling)
    assert p_value(seen, exact(tiny, sampling)) > LEVEL
    assert drafter.put_in > 300


def test_this_test_would_see_the_table_speaking(tiny: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, with q as if the draft had drawn what the table put in."""
    overrule = TableOverride.overrule
    monkeypatch.setattr(
        TableOverride, "overrule", lambda self, chosen, q, signals: overrule(self, chosen, None, signals)
    )
    seen, _ = sampled(tiny, Sampling(1.0))
    assert p_value(seen, exact(tiny, Sampling(1.0))) < LEVEL


def test_what_the_two_would_have_said_at_every_position_is_known_afterwards() -> None:
    """With gamma 1 and every token drafted that can be, what was followed is what was counted, position by position."""
    pair = random_pair("llama", noise=0.6)
    engine, drafter = engine_of(pair, serve__max_batch=1, gamma__initial=1)
    drafter.watched = {}
    for turn in range(12):
        request = Request(prompts(3, seed=2)[turn % 3], max_new_tokens=COUNT)
        (completion,) = engine.run([request])
        watched = drafter.watched.pop(request.id)
        followed = blended_hits(engine.pool.default, watched, completion)
        assert len(followed) == COUNT
        assert (not turn) or any(token != NO_PREDICTION for token, _ in watched.predictions)
        at, told = 0, list[bool]()
        for done in completion.rounds:
            told += followed[at : at + 1] if done.drafted else []
            at += done.emitted
        counted = [bool(done.accepted) for done in completion.rounds if done.drafted]
        assert sum(one != other for one, other in zip(told, counted, strict=True)) <= 3  # trust moved in between
    assert sum(counted) > 3


def test_the_table_is_judged_wherever_the_target_speaks() -> None:
    """With gamma 1 every second token at most is drafted; trust in the table counts every token that it predicted."""
    engine, drafter = engine_of(random_pair("llama", noise=0.6), serve__max_batch=1, gamma__initial=1)
    drafter.watched, predicted, drafted = {}, 0, 0
    for turn in range(6):
        request = Request(prompts(3, seed=2)[turn % 3], max_new_tokens=COUNT)
        (completion,) = engine.run([request])
        watched = drafter.watched.pop(request.id)
        predicted += sum(token != NO_PREDICTION for token, _ in watched.predictions)
        drafted += sum(done.drafted for done in completion.rounds)
    seen = watched.rates.predictions[0, :, SEEN].reshape(2, -1).sum(1)  # of the shared table and of the rows' own
    assert seen.max() == pytest.approx(predicted, rel=0.2) and seen.min() > 1.2 * drafted  # older ones weigh less


def test_a_table_that_comes_later_is_asked_before_the_round_adds_to_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever sits down then counts the text so far, and hears of the round afterwards: nothing is counted twice."""
    engine, drafter = engine_of(random_pair(), gamma__initial=0)
    place_of, lengths = drafter.proposer.place_of, list[int]()

    def noted(row: SequenceState) -> object:
        lengths.append(row.length)
        return place_of(row)

    monkeypatch.setattr(drafter.proposer, "place_of", noted)
    prompt = prompts(1, seed=5)[0]
    engine.submit(Request(prompt, max_new_tokens=2))
    while not lengths:
        engine.step()
    assert lengths[0] == len(prompt)
