"""With trees of any shape greedy output is the target's own, token for token."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import osd
from osd.drafters.tree import TreeDrafter
from osd.engine.engine import Engine
from osd.gamma.factory import CONTROLLERS
from osd.models.pair import Pair, load_pair
from storage.records import Request
from tests.lossless.test_lossless import serve
from tests.support.models import CONFIGS, VOCABULARY, alone, prompts, random_pair
from tests.support.proposers import BranchingDrafter, Guessing
from tests.support.settings import settings_of

pytestmark = pytest.mark.usefixtures("compiled")

COUNT = 24
KINDS = (TreeDrafter, BranchingDrafter)


def engine_of(
    pair: Pair, kind: type[TreeDrafter], expected: dict[tuple[int, ...], list[int]], nodes: int = 12, **chosen: object
) -> Engine:
    """An engine that drafts trees; ``expected``: the target's text after each prompt."""
    base = {
        "serve__max_batch": 4,
        "serve__max_length": 96,
        "gamma__rule": "fixed",
        "gamma__initial": 4,
        "gamma__max": 16,
    }
    engine = Engine(pair, settings_of(**{**base, **chosen}))
    proposer = Guessing(pair.vocab_size, expected)
    engine.drafting = kind(engine.pool, proposer, nodes, engine.target)
    return engine


@pytest.mark.parametrize("kind", CONFIGS)
def test_every_architecture_in_ragged_batches(kind: str) -> None:
    pair = random_pair(kind)
    asked = [Request(p, max_new_tokens=8 + 4 * i) for i, p in enumerate(prompts(9, seed=3))]
    expected = {r.prompt_tokens: alone(pair.target.module, r.prompt_tokens, r.max_new_tokens) for r in asked}
    generated = pair.target.module.generate(torch.tensor([asked[8].prompt_tokens]), max_new_tokens=40, do_sample=False)
    assert generated[0, len(asked[8].prompt_tokens) :].tolist() == expected[asked[8].prompt_tokens]
    for drafter, batch in ((TreeDrafter, 1), (TreeDrafter, 5), (BranchingDrafter, 3), (BranchingDrafter, 8)):
        engine = engine_of(pair, drafter, expected, serve__max_batch=batch)
        assert serve(engine, asked) == list(expected.values()), f"{drafter.__name__}, batch {batch}"
        if drafter is TreeDrafter:
            assert engine.stats.steps < 180 / batch  # trees were kept, else nothing is shown


@pytest.mark.parametrize("controller", CONTROLLERS)
@pytest.mark.parametrize("drafter", KINDS)
def test_every_controller(controller: str, drafter: type[TreeDrafter]) -> None:
    pair = random_pair("llama", eos=5)
    asked = [Request(p, max_new_tokens=COUNT) for p in prompts(6, seed=4)]
    expected = {r.prompt_tokens: alone(pair.target.module, r.prompt_tokens, COUNT, eos=5) for r in asked}
    assert serve(engine_of(pair, drafter, expected, gamma__rule=controller), asked) == list(expected.values())


@pytest.mark.parametrize("drafter", KINDS)
def test_what_a_round_counts(drafter: type[TreeDrafter]) -> None:
    pair = random_pair("llama")
    asked = [Request(p, max_new_tokens=COUNT) for p in prompts(8, seed=7)]
    expected = {r.prompt_tokens: alone(pair.target.module, r.prompt_tokens, COUNT) for r in asked}
    engine = engine_of(pair, drafter, expected)
    done = list(engine.run(asked))
    rounds = [r for c in done for r in c.rounds]
    for r in rounds:
        assert r.depth is not None and r.accepted <= r.depth <= min(r.gamma, r.drafted) and r.drafted <= 12
        assert r.emitted - r.accepted in (0, 1)  # none is the target's own where the text's end cuts what was kept
    assert any(r.drafted > r.depth > r.accepted for r in rounds)  # refused in a tree
    assert any(r.depth == r.accepted < r.gamma for r in rounds)  # a leaf above the depth that was asked for
    for completion in done:
        (outcome,) = completion.outcomes
        assert outcome.drafted == sum(r.drafted for r in completion.rounds)
        assert outcome.accepted == sum(accepted for _, accepted, _ in outcome.positions)
        assert outcome.rejections == sum(refused for *_, refused in outcome.positions)
        assert (outcome.draft_version == "guessing") == (drafter is TreeDrafter)
    proposer = engine.drafting.proposer  # type: ignore[attr-defined]
    assert not proposer.here and proposer.learned == {c.request.id: list(c.tokens) for c in done}
    assert all(0 < depth <= 4 and nodes == 12 for depth, nodes in proposer.asked)


@pytest.mark.parametrize("drafter", KINDS)
def test_a_request_that_must_not_be_learned_from_teaches_nothing(drafter: type[TreeDrafter]) -> None:
    pair = random_pair("llama")
    asked = [Request(p, max_new_tokens=9, learn=i != 1) for i, p in enumerate(prompts(3, seed=8))]
    engine = engine_of(pair, drafter, {})
    list(engine.run(asked))
    assert set(engine.drafting.proposer.learned) == {asked[0].id, asked[2].id}  # type: ignore[attr-defined]


def test_trees_are_cut_to_what_the_cache_has_room_for() -> None:
    """64 positions and as many more as the longest chain: rows near their end share a batch with young ones."""
    pair = random_pair("gpt2")
    asked = [Request(p * n, max_new_tokens=60) for p, n in zip(prompts(4, longest=1), (1, 50, 30, 58), strict=True)]
    expected = {r.prompt_tokens: alone(pair.target.module, r.prompt_tokens, 64 - len(r.prompt_tokens)) for r in asked}
    engine = engine_of(pair, TreeDrafter, expected, nodes=40, serve__max_length=64, gamma__max=4)
    done = {c.request.id: c for c in engine.run(asked)}
    for request in asked:
        assert list(done[request.id].tokens) == expected[request.prompt_tokens][:60]
    asked_for = {nodes for _, nodes in engine.drafting.proposer.asked}  # type: ignore[attr-defined]
    assert max(asked_for) <= 40 and min(asked_for) < 12


def test_the_end_token_ends_a_text_inside_a_tree() -> None:
    plain = random_pair("llama")
    prompt = prompts(1, seed=3)[0]
    text = alone(plain.target.module, prompt, 20)
    eos = text[9]
    ended = engine_of(replace(plain, eos_ids=frozenset([eos])), TreeDrafter, {prompt: text}, gamma__initial=12)
    (done,) = ended.run([Request(prompt, max_new_tokens=20)])
    assert (list(done.tokens), done.finish_reason) == (text[: text.index(eos) + 1], "stop")
    (done,) = ended.run([Request(prompt, max_new_tokens=13, ignore_eos=True)])
    assert (list(done.tokens), done.finish_reason) == (text[:13], "length")


def test_a_stop_string_ends_a_text_inside_a_tree() -> None:
    folder = Path(osd.__file__).parent / "demo" / "pair"
    talking = load_pair(folder / "target", folder / "draft", device="cpu")
    tokens = tuple(talking.tokenizer.encode("<|user|>\nhow many players are there?\n<|assistant|>\n"))
    (whole,) = Engine(talking, settings_of(serve__max_length=256)).run([Request(tokens, max_new_tokens=40)])
    stop = whole.text[12:17]
    for drafter in KINDS:
        engine = engine_of(talking, drafter, {tokens: list(whole.tokens)}, serve__max_length=256, gamma__initial=8)
        (cut,) = engine.run([Request(tokens, max_new_tokens=40, stop=("never in there", stop))])
        assert cut.text == whole.text[: whole.text.index(stop)] and cut.finish_reason == "stop"
        assert whole.tokens[: len(cut.tokens)] == cut.tokens and len(cut.tokens) < len(whole.tokens)


def test_chains_take_the_way_of_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proposals, or chains only: the pass, the rule and the mask are those of a batch without trees."""
    monkeypatch.setattr("osd.verification.verify.judge_trees", lambda *_, **__: pytest.fail("a tree"))
    pair = random_pair("llama")
    asked = [Request(p, max_new_tokens=12) for p in prompts(4, seed=1)]
    expected = {r.prompt_tokens: alone(pair.target.module, r.prompt_tokens, 12) for r in asked}
    for drafter, shapes in ((TreeDrafter, ("chain", "nothing")), (BranchingDrafter, ("nothing",))):
        engine = engine_of(pair, drafter, expected)
        engine.drafting.proposer.shapes = shapes  # type: ignore[attr-defined]
        assert serve(engine, asked) == list(expected.values())


@pytest.mark.drafters_may_fail
def test_a_proposal_that_is_no_tree_costs_the_round_its_draft_and_is_counted() -> None:
    pair = random_pair("llama")
    engine = engine_of(pair, TreeDrafter, {})
    engine.drafting.proposer.vocabulary = 4 * VOCABULARY  # type: ignore[attr-defined]
    asked = [Request(p, max_new_tokens=24) for p in prompts(4)]
    assert serve(engine, asked) == [alone(pair.target.module, r.prompt_tokens, 24) for r in asked]
    assert engine.stats.draft_failures["guessing"] > 0
