"""A draft that reads a finished text says what the engine found out by drafting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from osd.demo.runner.alone import TargetAlone
from osd.demo.runner.feed import Free, RequestFeed, Spent
from osd.demo.runner.stream import draft_hits, loaded_hits
from osd.drafters.scoring import drawn_from
from osd.engine.engine import Engine
from osd.models.pair import Pair
from osd.sequence import Completion
from storage.records import Request
from storage.sampling import Sampling
from tests.support.features import feature_pair
from tests.support.models import model_of, prompts, random_module, random_pair
from tests.support.settings import settings_of

GAMMA = 3


def serve(pair: Pair, batch: int = 3, count: int = 8, room: int = 40) -> list[Completion]:
    engine = Engine(
        pair, settings_of(serve__max_batch=batch, gamma__rule="fixed", gamma__initial=GAMMA, serve__max_length=128)
    )
    return list(engine.run(Request(prompt, room) for prompt in prompts(count, seed=5)))


def rounds(hits: Sequence[float], room: int) -> list[tuple[int, int]]:
    """Drafted and accepted in each round of a draft that agrees at these positions, at a fixed gamma."""
    found, at = [], 0
    while at < len(hits):
        drafted = min(GAMMA, room - at - 1)
        ahead = hits[at : at + drafted]
        accepted = [*ahead, False].index(False)
        found.append((drafted, accepted))
        at += accepted + 1
    return found


def test_reading_the_text_tells_every_round_that_the_engine_had() -> None:
    pair = random_pair(noise=0.3)
    reader = pair.draft.decoder(1, 128)
    texts = serve(pair)
    for completion in texts:
        told = rounds(draft_hits(reader, completion), len(completion.tokens))
        assert told == [(r.drafted, r.accepted) for r in completion.rounds]
    assert len({r.accepted for completion in texts for r in completion.rounds}) == GAMMA + 1  # it says something


def test_reading_agrees_with_a_plain_forward_pass() -> None:
    pair = random_pair(noise=0.3)
    reader = pair.draft.decoder(1, 128)
    for completion in serve(pair, count=3):
        tokens = [*completion.request.prompt_tokens, *completion.tokens]
        with torch.inference_mode():
            said = pair.draft.module(input_ids=torch.tensor([tokens])).logits[0].argmax(-1).tolist()
        first = len(completion.request.prompt_tokens)
        assert draft_hits(reader, completion) == [said[i - 1] == tokens[i] for i in range(first, len(tokens))]


@pytest.mark.parametrize("kind", ["medusa", "eagle", "dflash"])
def test_reading_tells_where_a_draft_of_hidden_states_was_right(kind: str) -> None:
    pair, seen = feature_pair(kind), set[bool]()
    settings = settings_of(gamma__rule="fixed", gamma__initial=1, serve__max_length=128)
    engine = Engine(pair, settings)
    for completion in engine.run(Request(prompt, 20) for prompt in prompts(6, seed=5)):
        hits, at = loaded_hits(engine.pool.default, completion, None), 0
        assert hits == draft_hits(pair.draft.decoder(1, 128), completion) and len(hits) == len(completion.tokens)
        for one in completion.rounds:
            assert not one.drafted or hits[at] == bool(one.accepted)
            seen |= {bool(hits[at])} if one.drafted else set()
            at += one.accepted + 1
    assert seen == {True, False}


@pytest.mark.parametrize("sampling", [Sampling(1.0, seed=1), Sampling(0.7, top_p=0.8, seed=2)])
def test_of_sampled_texts_what_would_be_accepted_is_the_overlap_of_both(sampling: Sampling) -> None:
    """Against a plain computation, position by position; and the engine accepts as many, within four errors."""
    pair = random_pair(noise=0.3)
    engine = Engine(pair, settings_of(gamma__rule="fixed", gamma__initial=1, serve__max_length=128))
    asked = [Request(p, 40, replace(sampling, seed=i), ignore_eos=True) for i, p in enumerate(prompts(12, seed=5))]
    reader, target, told = pair.draft.decoder(1, 128), pair.target.decoder(1, 128), list[float]()
    for completion in (done := list(engine.run(asked))):
        p = drawn_from(target, completion)
        shares = draft_hits(reader, completion, p)
        assert shares == pytest.approx(overlaps(pair, completion), abs=1e-4)
        assert loaded_hits(engine.pool.default, completion, p) == pytest.approx(shares, abs=1e-4)
        told += shares
    judged = [outcome for completion in done for outcome in completion.outcomes]
    accepted, drafted = sum(one.accepted for one in judged), sum(one.drafted for one in judged)
    assert abs(accepted / drafted - sum(told) / len(told)) < 4 * (0.25 / drafted) ** 0.5 + 4 * (0.25 / len(told)) ** 0.5


@torch.inference_mode()
def overlaps(pair: Pair, completion: Completion) -> list[float]:
    """Σ min(p, q) by transformers' own passes, and top-p by a loop."""
    tokens, sampling = [*completion.request.prompt_tokens, *completion.tokens], completion.request.sampling
    both = [
        model.module(torch.tensor([tokens])).logits[0, len(completion.request.prompt_tokens) - 1 : -1]
        for model in (pair.target, pair.draft)
    ]  # fmt: skip
    found = []
    for rows in zip(*both, strict=True):
        p, q = (kept((row.float() / sampling.temperature).softmax(-1).tolist(), sampling.top_p) for row in rows)
        found.append(sum(map(min, p, q)))
    return found


def kept(chances: list[float], top_p: float | None) -> list[float]:
    """What top-p leaves of a distribution."""
    mass, left = 0.0, [0.0] * len(chances)
    for token in sorted(range(len(chances)), key=lambda token: -chances[token]):
        if mass >= (top_p or 1.0):
            break
        mass, left[token] = mass + chances[token], chances[token]
    return [chance / sum(left) for chance in left]


def test_a_greedy_text_needs_no_pass_of_the_target() -> None:
    pair = random_pair(noise=0.3)
    (completion,) = serve(pair, count=1)
    assert drawn_from(pair.target.decoder(1, 128), completion) is None


def test_the_target_alone_finds_the_same_texts_alone_and_in_company() -> None:
    for together in (1, 3):
        pair = random_pair(eos=1)
        alone = TargetAlone(pair, settings_of(serve__max_batch=together, serve__max_length=128))
        texts = serve(pair)
        for completion in texts:
            alone.hold(completion, Spent(0.1, together))
        alone.finish()
        assert [check.request_id for check in alone.checks] == [completion.request.id for completion in texts]
        assert alone.failed == 0
        assert alone.speedup and alone.speedup_by_drafting
        assert all(check.plain_seconds for check in alone.checks)


def test_a_text_of_another_target_is_noticed() -> None:
    pair = random_pair()
    other = Pair(model_of(random_module("llama", seed=9)), pair.draft, None, pair.eos_ids)
    for together in (1, 3):
        alone = TargetAlone(other, settings_of(serve__max_batch=together, serve__max_length=128))
        for completion in serve(pair, count=3):
            alone.hold(completion, Spent(0.1, together))
        assert alone.failed == 3


def test_the_target_alone_decodes_as_many_at_a_time_as_had_company(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four rows, of which the stream kept one or two busy."""
    pair = random_pair(eos=1)
    alone, batches = TargetAlone(pair, settings_of(serve__max_batch=4, serve__max_length=128)), list[int]()
    generate, step = alone._generate, alone._plain.step

    def counted(completions: Sequence[Completion]) -> object:
        batches.append(len(completions))
        return generate(completions)

    def stepped() -> object:
        rows.append(len(alone._plain.rows))
        return step()

    rows = list[int]()
    monkeypatch.setattr(alone, "_generate", counted)
    monkeypatch.setattr(alone._plain, "step", stepped)
    texts = serve(pair, count=6)
    for company in (1.2, 2.3):
        for completion in texts:
            alone.hold(completion, Spent(0.1, company))
        alone.finish()
        assert set(batches) == {round(company)} and max(rows) == round(company)
        batches.clear()
        rows.clear()


def test_a_request_s_company_is_who_was_in_flight_with_it() -> None:
    pair = random_pair()
    engine = Engine(pair, settings_of(serve__max_batch=4, serve__max_length=128, gamma__rule="fixed", gamma__initial=0))
    asked = [Request(prompt, max_new_tokens=12) for prompt in prompts(4, seed=6)]
    for rows in (1, 2, 4):
        feed = RequestFeed(engine, Free(), "(none)", rows)
        again = (replace(request, id=f"{rows}/{request.id}") for request in asked)
        spent = [one for finished in feed.serve(again, refused=lambda error: None) for _, one in finished]
        assert [one.company for one in spent] == pytest.approx([rows] * 4)
        assert all(one.seconds > 0 for one in spent)
