"""Rows of one batch that use different drafts: the target's own text, each row drafted for by its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from osd.draft import Draft, merge
from osd.engine.engine import UNVERSIONED, Engine
from osd.gamma.base import CostModel, Observation
from osd.gamma.factory import CONTROLLERS, make_planner
from osd.models.acceptance_head import HeadPass
from osd.models.pair import Pair
from osd.sequence import Completion
from router.base import Decision
from storage.records import Outcome, Request, Route
from storage.sampling import Sampling
from tests.lossless.test_distribution import LEVEL, PROMPT, SAMPLES, exact, p_value
from tests.osd.models.test_acceptance_head import random_head
from tests.support.adapters import LINEAR, adapt, let_in, lora, read, save
from tests.support.models import alone, default_dtype, model_of, noisy, prompts, random_pair
from tests.support.settings import settings_of

COUNT = 24
DRAFTS = ("default", "full", "first", "second")


class ByName:
    """A request's route is its draft; what comes of it is kept."""

    reads_text = reads_perplexity = False

    def __init__(self) -> None:
        self.seen: list[tuple[Request, Decision, Sequence[Outcome]]] = []

    def route(self, request: Request) -> Decision:
        return Decision(Route(str(request.route), draft=str(request.route)))

    def observe(self, request: Request, decision: Decision, outcomes: Sequence[Outcome]) -> None:
        self.seen.append((request, decision, outcomes))


Make = Callable[..., Engine]


@pytest.fixture
def engine(tmp_path: Path) -> Make:
    """An engine with a default draft, another of full weights, and two adapters over the default."""

    def make(kind: str = "llama", **settings: object) -> Engine:
        pair = random_pair(kind, noise=0.1)
        serve = settings_of(**{"serve__max_length": 96, "gamma__rule": "fixed", "gamma__initial": 4} | settings)
        made = Engine(pair, serve, router=ByName())
        assert let_in(made, "full", model_of(noisy(pair.target.module, 0.05, seed=9))) == "taken"
        for seed, name in enumerate(("first", "second")):
            peft = adapt(pair.draft.module, lora(LINEAR[kind], 3 + seed), seed, size=0.1)
            folder = save(peft, tmp_path / f"{kind} {name}")
            assert let_in(made, name, adapter=read(folder, pair.draft)) == "taken"
        return made

    return make


def mixed(count: int = 10, drafts: Sequence[str] = DRAFTS, tokens: int = COUNT) -> list[Request]:
    texts = prompts(count, seed=4)
    return [Request(p, max_new_tokens=tokens - i % 5, route=drafts[i % len(drafts)]) for i, p in enumerate(texts)]


def check(engine: Engine, asked: list[Request]) -> list[Completion]:
    done = list(engine.run(asked))
    for c in done:
        assert list(c.tokens) == alone(engine.pair.target.module, c.request.prompt_tokens, c.request.max_new_tokens)
    return done


@pytest.mark.parametrize("kind", LINEAR)
def test_mixed_batches_are_greedy_lossless_and_each_row_has_its_own_draft(kind: str, engine: Make) -> None:
    made = engine(kind, serve__max_batch=5)
    done = check(made, mixed())
    for c in done:
        name = str(c.request.route)
        version = UNVERSIONED if name == "default" else f"{name}-v1"
        assert {r.draft_version for r in c.rounds} == {version}
        assert [o.draft_version for o in c.outcomes] == [version] and c.outcomes[0].requests == 1
        assert sum(o.emitted for o in c.outcomes) == len(c.tokens)
    router = made.router
    assert isinstance(router, ByName) and {r.id: o for r, _, o in router.seen} == {
        c.request.id: c.outcomes for c in done
    }


@pytest.mark.parametrize("controller", CONTROLLERS)
def test_every_controller_sizes_the_drafts_of_a_mixed_batch(controller: str, engine: Make) -> None:
    check(engine(serve__max_batch=4, gamma__rule=controller, gamma__initial=3), mixed(8))


def test_a_row_is_drafted_for_as_if_it_were_alone(engine: Make) -> None:
    """What each row had accepted in a mixed batch is what it has when all rows of the engine use its draft."""

    def rounds(made: Engine, asked: list[Request]) -> dict[str, list[tuple[int, int]]]:
        return {c.request.id: [(r.drafted, r.accepted) for r in c.rounds] for c in made.run(asked)}

    asked = mixed(12)
    together = rounds(engine(serve__max_batch=6), asked)
    apart = {}
    for name in DRAFTS:
        apart |= rounds(engine(serve__max_batch=2), [r for r in asked if r.route == name])
    assert together == apart
    by_draft = {r.route: together[r.id] for r in asked}
    assert len({str(seen) for seen in by_draft.values()}) == len(DRAFTS)  # the drafts differ


def test_each_row_s_rounds_end_where_the_head_of_its_own_draft_says(engine: Make) -> None:
    """As above, two of the drafts over one base; the last draft has no head, and drafts as many as it may."""

    def with_heads(**settings: object) -> Engine:
        made = engine(gamma__rule="specdecpp", gamma__initial=6, gamma__max=6, **settings)
        for seed, name in enumerate(DRAFTS[:-1]):
            made.pool.set_head(name, HeadPass(random_head(seed=seed), made.pair.device))
        return made

    asked = mixed(12)
    together = list(with_heads(serve__max_batch=6).run(asked))
    for name in DRAFTS:
        mine = [request for request in asked if request.route == name]
        apart = {done.request.id: drafted(done) for done in with_heads(serve__max_batch=2).run(mine)}
        assert {done.request.id: drafted(done) for done in together if done.request.id in apart} == apart
    full = {name: [done for done in together if done.request.route == name] for name in DRAFTS}
    assert {name: all(drafted(done) == most(done, 6) for done in full[name]) for name in DRAFTS} == {
        name: name == DRAFTS[-1] for name in DRAFTS
    }


def drafted(done: Completion) -> list[int]:
    return [one.drafted for one in done.rounds]


def most(done: Completion, gamma: int) -> list[int]:
    """Rounds of a rule that always drafts as many tokens as there is room for."""
    left = [done.request.max_new_tokens - sum(one.emitted for one in done.rounds[:i]) for i in range(len(done.rounds))]
    return [min(gamma, room - 1) for room in left]


def test_a_head_comes_before_its_draft_and_stays_as_versions_change(engine: Make) -> None:
    made = engine()
    head = HeadPass(random_head(), made.pair.device)
    made.pool.set_head("late", head)
    for seed in (3, 4):
        assert let_in(made, "late", model_of(noisy(made.pair.target.module, 0.05, seed=seed))) == "taken"
        assert made.pool.loaded_drafts["late"].head is head
    assert made.pool.head is None


def test_rows_that_leave_make_room_in_their_own_cache_only(engine: Make) -> None:
    made = engine(serve__max_batch=6)
    asked = mixed(9)
    for request in asked:
        made.submit(request)
    for _ in range(2):
        made.step()
    assert made.cancel(asked[1].id) and made.cancel(asked[0].id)
    done = {}
    while made.busy:
        for body in made.pool.busy:
            assert [row.loaded.body for row in body.rows] == [body] * len(body.rows)
        assert sum(len(body.rows) for body in made.pool.busy) == len(made.rows)
        done |= {p.request_id: p.completion for p in made.step() if p.completion}
    for request in asked[2:]:
        text = alone(made.pair.target.module, request.prompt_tokens, request.max_new_tokens)
        assert list(done[request.id].tokens) == text
    assert made.pool.busy == [] and all(loaded.rows == 0 for loaded in made.pool.loaded_drafts.values())


Texts = Counter[tuple[int, ...]]


def sampled(pair: Pair, *, wrong: bool = False) -> dict[str, Texts]:
    """Two-token texts of rows that alternate between a draft that is often right and one that seldom is."""
    serve = settings_of(serve__max_batch=64, serve__max_length=32, gamma__rule="fixed", gamma__initial=2)
    engine = Engine(pair, serve, router=ByName())
    assert let_in(engine, "other", model_of(noisy(pair.target.module, 1.5, seed=3))) == "taken"
    if wrong:
        _mix_up(engine)
    plain = Request(PROMPT, max_new_tokens=3, ignore_eos=True)
    asked = [
        replace(plain, id=str(seed), route=("default", "other")[seed % 2], sampling=Sampling(1.0, seed=seed))
        for seed in range(2 * SAMPLES)
    ]
    texts: dict[str, Texts] = {"default": Counter(), "other": Counter()}
    for c in engine.run(asked):
        texts[c.route][c.tokens[:2]] += 1
    return texts


def _mix_up(engine: Engine) -> None:
    """Give every row the q of its neighbour, which another draft drew for."""
    propose = engine.pool.propose

    def wrongly(*args: Any) -> Draft:
        draft = propose(*args)
        return replace(draft, q=None if draft.q is None else draft.q.flip(0))

    engine.pool.propose = wrongly  # type: ignore[method-assign]


@pytest.fixture(scope="module")
def nine() -> Pair:
    return random_pair("llama", noise=0.35, vocabulary=9)


def test_sampled_text_follows_the_target_with_two_drafts_in_the_batch(nine: Pair) -> None:
    """Chi-square at 1e-4 for the rows of each draft and for all: a false alarm has odds of at most 1 in 3,300 for
    fresh seeds; these are fixed."""
    seen, expected = sampled(nine), exact(nine, Sampling(1.0))
    for texts in (*seen.values(), seen["default"] + seen["other"]):
        assert p_value(texts, expected) > LEVEL


def test_that_test_would_see_rows_judged_by_another_drafts_probabilities(nine: Pair) -> None:
    expected = exact(nine, Sampling(1.0))
    assert min(p_value(texts, expected) for texts in sampled(nine, wrong=True).values()) < LEVEL


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_merging_puts_every_row_in_its_place(dtype: torch.dtype) -> None:
    """Against rows written one by one, to the last digit, whatever torch's default is meanwhile."""
    generator = torch.Generator().manual_seed(0)

    def part(rows: int, size: int, lengths: tuple[int, ...]) -> Draft:
        tokens = torch.randint(9, (rows, size), generator=generator)
        return Draft(tokens, lengths, torch.rand(rows, size, 9, generator=generator), size + 1)

    parts = [(part(2, 3, (3, 1)), [3, 0]), (part(1, 1, (1,)), [2])]
    with default_dtype(dtype):
        whole = merge(parts, 4, 9, torch.device("cpu"), sampled=True)
    assert (whole.size, whole.lengths, whole.passes) == (3, (1, 0, 1, 3), 4)
    assert whole.q is not None
    for draft, places in parts:
        for i, place in enumerate(places):
            n = draft.lengths[i]
            assert torch.equal(whole.tokens[place, :n], draft.tokens[i, :n])
            assert draft.q is not None and torch.equal(whole.q[place, :n], draft.q[i, :n])
    assert not whole.q[1].any() and merge([], 2, 9, torch.device("cpu"), sampled=True).size == 0


def test_a_draft_that_knows_fewer_positions_stops_drafting_there() -> None:
    pair = random_pair("gpt2")
    short = random_pair("gpt2", noise=0.02).draft.module
    short.transformer.wpe.weight.data[40:] = torch.nan  # it knows 40 positions; a look beyond would show
    engine = Engine(pair, settings_of(serve__max_batch=2, serve__max_length=128, gamma__rule="fixed"), router=ByName())
    assert let_in(engine, "short", replace(model_of(short), limit=40)) == "taken"
    done = check(engine, mixed(2, ("short", "default"), 60))
    drafted = {c.route: [r.drafted for r in c.rounds] for c in done}
    assert drafted["short"][0] > 0 and drafted["short"][-1] == 0 < max(drafted["default"][-5:])


def test_costs_are_kept_for_each_draft_and_controllers_use_their_own(engine: Make) -> None:
    made = engine(serve__max_batch=4, gamma__rule="analytic")
    list(made.run(mixed(16)))
    costs = made.pass_costs
    mine, theirs = (made.pool.loaded_drafts[name].body.costs(made.costs) for name in ("first", "full"))
    assert mine is made.costs is not theirs and theirs.rounds == mine.rounds == made.stats.steps
    assert all((ms := costs.draft_ms(name)) and ms > 0 for name in DRAFTS) and costs.draft_ms("nobody") is None
    assert costs.verify_ms(5) == made.costs.verify_ms(1, 5)
    assert costs.draft_ms("full") != costs.draft_ms("default") == costs.draft_ms("second")


def test_a_dearer_draft_is_asked_for_shorter_drafts() -> None:
    """The same acceptance, in one batch of two: who costs ten times as much a pass drafts less."""
    settings, costs = settings_of(gamma__rule="analytic", gamma__max=8), CostModel()
    dear = costs.of("dear")
    costs.sharing = dear.sharing = 1
    planner = make_planner(settings.gamma, costs)
    for _ in range(8):
        costs.observe_draft(1, 1, 0.5)
        dear.observe_draft(1, 1, 5.0)
        for tokens in (2, 4, 8, 16):
            costs.observe_verify(2, tokens, 10.0)
    gammas = {}
    for name, own in (("cheap", None), ("dear", dear)):
        controller = planner.controller("default", own)
        row = controller.start()
        for _ in range(12):
            row.observe(Observation(4, 4, 3))
        gammas[name] = controller.plan([row], [8], 2)[0]
    assert gammas["cheap"] > gammas["dear"]
    assert costs.rounds_ms(2, 2)[1] == pytest.approx(0.5 + 10.0 / 2, rel=0.02)
    assert dear.rounds_ms(2, 2)[1] == pytest.approx(5.0 + 10.0 / 2, rel=0.02)
    assert costs.of("dear") is dear
