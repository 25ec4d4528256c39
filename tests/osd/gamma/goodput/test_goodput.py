"""goodput: worked by hand, against the best that can be done in a known world, and where it must not speculate."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from osd.gamma.base import CostModel, DraftDecision, Observation
from osd.gamma.goodput import goodput
from osd.gamma.goodput.asking import ROUNDS
from osd.gamma.goodput.beginning import FIRST_JUDGED, TRIED_ENOUGH
from osd.gamma.goodput.contexts import peak_of
from osd.gamma.goodput.goodput import GoodputController
from osd.gamma.goodput.goodput_row import GoodputRow
from tests.support.worlds import known_costs

Verify = Callable[[int, int], float]
"""Milliseconds of a target pass over B rows and N tokens in all."""


@dataclass
class World:
    """A draft whose tokens come in two kinds, (peak, chance of acceptance) each; sure ones follow sure ones."""

    sure: tuple[float, float] = (0.97, 0.95)
    unsure: tuple[float, float] = (0.25, 0.15)
    stay: float = 0.8
    step: float = 0.5
    verify: Verify = lambda batch, tokens: 4.0

    def chain(self, chance: random.Random) -> list[tuple[float, bool]]:
        """Peak of each token and whether it would be accepted, were all before it."""
        kind, tokens = chance.random() < 0.5, []
        for _ in range(20):
            peak, accepted = self.sure if kind else self.unsure
            tokens.append((peak, chance.random() < accepted))
            kind = kind if chance.random() < self.stay else not kind
        return tokens


@dataclass
class Played:
    emitted: int = 0
    ms: float = 0.0
    drafted: int = 0
    passes: int = 0

    @property
    def rate(self) -> float:
        return self.emitted / self.ms


def play(
    controller: GoodputController, costs: CostModel, worlds: Sequence[World], rounds: int, seed: int = 0
) -> Played:
    """Rows of one batch, each with a world of its own; the first world's costs hold for all."""
    chance, played = random.Random(seed), Played()
    rows: list[GoodputRow] = [controller.start() for _ in worlds]
    batch = len(rows)
    for _ in range(rounds):
        gammas = controller.plan(rows, [20] * batch, batch)
        lengths, chains, passes = list(gammas), [world.chain(chance) for world in worlds], 0
        while passes < max(lengths):
            passes += 1
            going = [i for i in range(batch) if lengths[i] >= passes]
            peaks = [peak_of(chains[i][passes - 1][0]) for i in going]
            answers = controller.should_continue([rows[i] for i in going], passes, peaks)
            for i, go in zip(going, answers, strict=True):
                lengths[i] = min(lengths[i], (passes - 1, passes, lengths[i])[go])
        draft_ms, tokens = passes * worlds[0].step, batch + sum(lengths)
        costs.observe_draft(batch, passes, draft_ms)
        costs.observe_verify(batch, tokens, worlds[0].verify(batch, tokens))
        played.ms += draft_ms + worlds[0].verify(batch, tokens)
        for row, gamma, length, chain in zip(rows, gammas, lengths, chains, strict=True):
            verdicts = [accepted for _, accepted in chain[:length]]
            accepted = verdicts.index(False) if False in verdicts else length
            row.observe(Observation(gamma, length, accepted))
            played.emitted, played.drafted = played.emitted + accepted + 1, played.drafted + length
        played.passes += passes
    return played


def fixed(world: World, gamma: int, rounds: int, seed: int = 0) -> float:
    """Tokens a millisecond of always drafting ``gamma`` tokens for one row."""
    chance, emitted = random.Random(seed), 0
    for _ in range(rounds):
        verdicts = [accepted for _, accepted in world.chain(chance)[:gamma]]
        emitted += 1 + (verdicts.index(False) if False in verdicts else gamma)
    return emitted / (rounds * (gamma * world.step + world.verify(1, 1 + gamma)))


def clairvoyant(world: World, threshold: float, rounds: int, seed: int = 0) -> float:
    """Tokens a millisecond of stopping, with the chances known, once survival is below ``threshold``."""
    chance, emitted, ms = random.Random(seed), 0, 0.0
    worth = dict([world.sure, world.unsure])
    for _ in range(rounds):
        chain, survival, drafted, passes = world.chain(chance), 1.0, 0, 0
        while passes < 20:
            passes += 1
            survival *= worth[chain[passes - 1][0]]
            if survival < threshold:
                break
            drafted = passes
        verdicts = [accepted for _, accepted in chain[:drafted]]
        emitted += 1 + (verdicts.index(False) if False in verdicts else drafted)
        ms += passes * world.step + world.verify(1, 1 + drafted)
    return emitted / ms


def fresh(costs: CostModel, initial: int = 4, maximum: int = 20) -> GoodputController:
    return GoodputController(costs, initial=initial, maximum=maximum)


def experienced(costs: CostModel, maximum: int = 20) -> GoodputController:
    """Past its first rounds, with nothing learned in them."""
    controller = fresh(costs, maximum=maximum)
    controller.weigher.judged = FIRST_JUDGED
    return controller


def test_the_first_round_worked_by_hand() -> None:
    # a = 1, b = 4 whatever is verified, one row: λ = 1 / 4, θ = 0. Of peaks nothing is known: any of the 13 bins may be
    # first, worth its middle each, 0.6096 on average; after one bin half is like it, and half is any.
    controller = experienced(known_costs(1.0, lambda batch, tokens: 4.0))
    row = controller.start()
    assert controller.plan([row], [9], 1) == [9]  # 0.61 > 0.25
    # S = 0.85: f is at least 0.85 · (0.425 + 0.305) = 0.62
    assert controller.should_continue([row], 1, [peak_of(0.85)]) == [DraftDecision.ON]
    # S = 0.3825: the next token is worth S · (0.225 + 0.305) = 0.20. U after it is at most what the surest bin leaves,
    # S · 0.9975 · (0.499 + 0.305) − 0.25 = 0.06, in the 2 of 13 bins that leave as much, so 0.22 < 0.25
    assert controller.should_continue([row], 2, [peak_of(0.45)]) == [DraftDecision.LAST]
    row.observe(Observation(9, 2, 2))
    # It is asked again whether to draft when four rounds are over. 3 tokens in 2 · 1 + 4 ms and three times 2 in 1 + 4,
    # 5.25 plain rounds, are added to 0.97⁴ of the 4 tokens in 4 plain rounds to begin with, with weights 0.97⁰ … 0.97³
    for _ in range(3):
        assert controller.plan([row], [9], 1) == [9]
        controller.should_continue([row], 1, [peak_of(0.85)])
        row.observe(Observation(9, 1, 1))
    controller.plan([row], [9], 1)
    keeps = 0.97**4
    each = (1 + 0.97 + 0.97**2 + 0.97**3) / 4
    assert controller.speedup == pytest.approx((keeps * 4 + each * 9) / (keeps * 4 + each * 5.25))


def test_a_token_that_is_not_worth_verifying_is_declined() -> None:
    # a = 0.1, b = 4 + 0.5 a token more: θ = 0.25 · 0.5 = 0.125
    controller = experienced(known_costs(0.1, lambda batch, tokens: 3.5 + 0.5 * tokens))
    row = controller.start()
    controller.plan([row], [9], 1)
    assert controller.should_continue([row], 1, [peak_of(0.35)]) == [DraftDecision.ON]
    # S = 0.35 · 0.25, and what follows is worth less
    assert controller.should_continue([row], 2, [peak_of(0.25)]) == [DraftDecision.DECLINE]


def test_it_comes_close_to_knowing_the_world_and_beats_every_fixed_gamma() -> None:
    world = World()
    costs = CostModel()
    play(learned := fresh(costs), costs, [world], 400, seed=1)
    got = play(learned, costs, [world], 3000, seed=2).rate
    best_fixed = max(fixed(world, gamma, 3000, seed=2) for gamma in range(13))
    best = max(clairvoyant(world, threshold / 20, 3000, seed=2) for threshold in range(20))
    assert best > 1.1 * best_fixed  # else there would be nothing to win
    assert got > 0.97 * best


def test_rows_of_one_batch_draft_as_much_as_each_is_worth() -> None:
    # eight rows, half of which are never accepted
    good = World(step=0.2, verify=lambda batch, tokens: 4 + 0.05 * tokens)
    bad = World(sure=(0.97, 0.0), unsure=(0.25, 0.0))
    costs = CostModel()
    controller = fresh(costs)
    play(controller, costs, [good] * 4 + [bad] * 4, 200)
    rows = [controller.start() for _ in range(8)]
    drafted = [0] * 8
    chance = random.Random(3)
    for _ in range(60):
        lengths = controller.plan(rows, [20] * 8, 8)
        chains = [(good if i < 4 else bad).chain(chance) for i in range(8)]
        for passes in range(1, 21):
            going = [i for i in range(8) if lengths[i] >= passes]
            if not going:
                break
            peaks = [peak_of(chains[i][passes - 1][0]) for i in going]
            answers = controller.should_continue([rows[i] for i in going], passes, peaks)
            for i, go in zip(going, answers, strict=True):
                lengths[i] = min(lengths[i], (passes - 1, passes, lengths[i])[go])
        for i, row in enumerate(rows):
            verdicts = [accepted for _, accepted in chains[i][: lengths[i]]]
            row.observe(Observation(20, lengths[i], verdicts.index(False) if False in verdicts else lengths[i]))
            drafted[i] += lengths[i]
    assert min(drafted[:4]) > 2 * max(drafted[4:])


@pytest.mark.parametrize("batch", [1, 8, 32])
def test_a_hopeless_draft_costs_next_to_nothing(batch: int) -> None:
    world = World(sure=(0.97, 0.0), unsure=(0.25, 0.0), verify=lambda batch, tokens: 4 + 0.1 * tokens)
    costs = CostModel()
    played = play(fresh(costs), costs, [world] * batch, 2000)
    plain = 2000 * world.verify(batch, batch)
    assert played.ms < 1.02 * plain and played.drafted > 0  # it went on trying


def test_a_batch_does_not_go_by_the_luck_of_two_rounds_and_a_probe_soon_tells_it_more() -> None:
    """First passes of eight rows are remembered for as many rounds as those of one."""
    controller = fresh(known_costs(1.0, lambda batch, tokens: 10.0, (8,)))
    rows = [controller.start() for _ in range(8)]

    def hope(peak: float, drafting: int, rounds: int) -> float:
        """A row's, after rounds in which so many rows' first passes found this peak."""
        for _ in range(rounds):
            controller.weigher.begin(rows)
            controller.weigher.weigh(rows[:drafting], [peak_of(peak)] * drafting, 0.0)
        return controller.weigher.begin(rows)[0]

    controller.weigher.loaded([], rows)
    usual = hope(0.9, 8, 30)
    assert hope(0.05, 8, 2) > 0.7 * usual
    assert hope(0.05, 8, 30) < 0.25 * usual
    assert hope(0.9, 1, 16) > 0.3 * usual


def test_where_verifying_anything_at_all_is_dear_a_batch_does_not_verify_the_drafts_of_a_few() -> None:
    """Half of the rows are sure of their drafts; each token they keep is worth its own price, not what they share."""
    world = World(verify=lambda batch, tokens: 4.0 + (2.0 + 0.2 * (tokens - batch)) * (tokens > batch), step=0.8)
    costs = CostModel()
    played = play(fresh(costs), costs, [world] * 8, 600)
    assert played.rate > 0.96 * 8 / 4.0 and played.drafted > 0


def test_a_first_token_that_only_pays_for_what_comes_after_it_is_drafted_in_a_batch_too() -> None:
    world = World(verify=lambda batch, tokens: 4.0 + (1.5 + 0.05 * (tokens - batch)) * (tokens > batch), step=0.3)
    costs = CostModel()
    assert play(fresh(costs), costs, [world] * 2, 600).rate > 1.6 * 2 / 4.0


class Restless(GoodputController):
    """Decides anew before every round."""

    def plan(self, *asked):
        self._quiet = 0
        return super().plan(*asked)


@pytest.mark.parametrize("batch", [1, 8])
def test_a_draft_that_nearly_pays_loses_no_more_than_it_may(batch: int) -> None:
    """A token is worth 0.84 of its pass; drafting one every round would lose 3.2 %."""
    costs, kind = CostModel(), (0.21, 0.21)
    world = World(sure=kind, unsure=kind, step=1.0)
    controller = fresh(costs)
    play(controller, costs, [world] * batch, 1000)
    assert play(controller, costs, [world] * batch, 8000 // batch, seed=1).rate > 0.987 * batch / 4.0


@pytest.mark.parametrize("batch", [1, 3])
def test_rounds_without_a_decision_are_those_in_which_it_would_decide_nothing(
    batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(goodput, "_COMING_AND_GOING", 0)
    bad = World(sure=(0.6, 0.1), unsure=(0.25, 0.0), step=0.8, verify=lambda batch, tokens: 4 + 0.1 * tokens)
    worlds = [[bad] * batch, [World()] * batch, [bad] * batch, [bad] * (batch - 1) + [World()]]
    played: list[list[Played]] = []
    for kind in (GoodputController, Restless):
        costs = CostModel()
        controller = kind(costs, initial=4, maximum=20)
        played.append([play(controller, costs, rows, 700, seed) for seed, rows in enumerate(worlds)])
    assert played[0] == played[1]


class Counting(GoodputController):
    """Counts its decisions."""

    decisions = 0

    def _decide(self, *asked):
        self.decisions += 1
        return super()._decide(*asked)


@pytest.mark.parametrize(("batch", "least", "most"), [(1, 40, 40), (4, 10, 24)])
def test_who_comes_to_a_batch_that_rests_is_looked_at_a_little_later(batch: int, least: int, most: int) -> None:
    """However many come and go: the first of them waits for three rounds, and one row alone for none."""
    bad = World(sure=(0.97, 0.0), unsure=(0.25, 0.0), verify=lambda batch, tokens: 4 + 0.1 * tokens)
    costs = CostModel()
    controller = Counting(costs, initial=4, maximum=20)
    play(controller, costs, [bad] * batch, 2000)
    rows = [controller.start() for _ in range(batch)]
    controller.decisions = 0
    for _ in range(40):
        rows = [*rows[1:], controller.start()]
        gammas = controller.plan(rows, [20] * batch, batch)
        if any(gammas):
            controller.should_continue(
                [row for row, gamma in zip(rows, gammas, strict=True) if gamma], 1, [peak_of(0.0)]
            )
        costs.observe_verify(batch, batch, bad.verify(batch, batch))
        for row in rows:
            row.observe(Observation(0, 0, 0))
    assert least <= controller.decisions <= most


def test_it_starts_again_when_the_draft_becomes_good() -> None:
    bad, good = World(sure=(0.97, 0.0), unsure=(0.25, 0.0)), World()
    costs = CostModel()
    controller = fresh(costs)
    play(controller, costs, [bad], 1500)
    got = play(controller, costs, [good], 6000).rate
    assert got > 0.9 * max(clairvoyant(good, threshold / 20, 6000) for threshold in range(20))


def requests(controller: GoodputController, costs: CostModel, world: World, count: int, rounds: int) -> list[int]:
    """Requests one after another, each of so many rounds: what was drafted in each."""
    return [play(controller, costs, [world], rounds, seed=number).drafted for number in range(count)]


def test_traffic_that_turns_good_is_noticed_within_a_few_requests() -> None:
    """Nothing is sure of what was asked for until now; then everything is, as peaks say at once. With one memory for
    all passes it took 17 requests; without a guess that like follows like, it stayed at one token a round."""
    dull = World(sure=(0.25, 0.1), unsure=(0.25, 0.1), step=1.6)
    clear = World(sure=(0.97, 0.95), unsure=(0.97, 0.95), step=1.6)
    costs = CostModel()
    controller = fresh(costs)
    assert max(requests(controller, costs, dull, 100, 60)[-10:]) <= ROUNDS
    assert min(requests(controller, costs, clear, 20, 60)[8:]) > 120


def test_one_unlucky_text_does_not_keep_an_engine_from_drafting() -> None:
    """Nothing of the first request's draft is accepted, which tells little: the next two are probed at once, and where
    their drafts are as bad, the others only for credit. Where they are good it drafts from then on."""
    never, good = World(sure=(0.5, 0.0), unsure=(0.5, 0.0)), World(sure=(0.5, 0.6), unsure=(0.5, 0.6))
    costs = CostModel()
    first, *others = requests(fresh(costs), costs, never, 6, 60)
    assert FIRST_JUDGED <= first < 3 * FIRST_JUDGED
    assert others[:2] == [ROUNDS, ROUNDS]
    assert 0 in others[2:]
    costs = CostModel()
    controller = fresh(costs)
    assert play(controller, costs, [never], 60).drafted < 3 * FIRST_JUDGED
    assert min(requests(controller, costs, good, 10, 60)[2:]) > 30
    costs = CostModel()
    controller = fresh(costs)
    play(controller, costs, [never] * 4, 60)  # four texts at once, and a round that is dear
    assert play(controller, costs, [never] * 4, 20).drafted == 0


def test_a_request_is_asked_while_it_is_young() -> None:
    """Where a probe is due in the middle of one it waits for the next."""
    world = World(sure=(0.97, 0.0), unsure=(0.25, 0.0))
    costs = CostModel()
    controller = fresh(costs)
    requests(controller, costs, world, 20, 50)
    drafted = []
    for number in range(60):
        row = controller.start()
        for token in range(50):
            [gamma] = controller.plan([row], [99], 1)
            if gamma:
                drafted.append((number, token))
                controller.should_continue([row], 1, [peak_of(0.97)])
                costs.observe_draft(1, 1, world.step)
            costs.observe_verify(1, 1 + gamma, 4.0)
            row.observe(Observation(gamma, gamma, 0))
    assert drafted and all(token < 5 + ROUNDS for _, token in drafted)
    assert len({number for number, _ in drafted}) == len(drafted) / ROUNDS, "all rounds of the same request"


def test_what_the_first_rounds_say_of_a_machine_that_is_still_starting_is_not_believed_for_ever() -> None:
    """They are the only ones that tell what verifying costs, where on their account nobody drafts any more."""
    asked = 0

    def verify(batch: int, tokens: int) -> float:
        nonlocal asked
        asked += 1
        return 40.0 if tokens > batch and asked <= 2 * 100 else 4.0  # play asks twice a round

    costs = CostModel()
    controller, worlds = fresh(costs), [World(step=1.5, verify=verify), World()]
    play(controller, costs, worlds, 4000)
    assert play(controller, costs, worlds, 400, seed=1).drafted > 800  # 1,303 where no round was slow


def test_when_drafting_grows_dear_it_drafts_less() -> None:
    cheap, dear = World(step=0.3), World(step=3.0)
    costs = CostModel()
    controller = fresh(costs)
    before = play(controller, costs, [cheap], 400).drafted
    play(controller, costs, [dear], 200)
    assert play(controller, costs, [dear], 400).drafted < before / 3


def test_a_prompt_that_is_dear_to_read_is_not_read_for_a_few_tokens() -> None:
    world, costs = World(), CostModel()
    controller = fresh(costs)
    play(controller, costs, [world], 400)
    for _ in range(8):
        costs.observe_verify(1, 1, 4.0)  # so that no probe is due
        costs.unread = 100
        costs.observe_draft(1, 2, 2 * world.step + 100.0)  # 1 ms for each token that is read
    costs.unread = 0
    assert controller.plan([controller.start()], [60], 1, [700]) == [0]  # 700 ms to win at most 60 tokens of 4 ms
    assert controller.plan([controller.start()], [60], 1, [10]) == [20]
    assert controller.plan([controller.start()], [60], 1, [0]) == [20]


@pytest.mark.parametrize("initial", [0, 1, 4, 12, 20])
def test_gamma_initial_plays_no_part(initial: int) -> None:
    world, costs = World(), CostModel()
    got = play(fresh(costs, initial), costs, [world], 2000, seed=5).rate
    usual = CostModel()
    assert got == pytest.approx(play(fresh(usual, 4), usual, [world], 2000, seed=5).rate, rel=1e-12)


def test_never_more_than_there_is_room_for() -> None:
    controller = experienced(known_costs(0.1, lambda batch, tokens: 4.0, batches=(1, 3)), maximum=6)
    assert controller.plan([controller.start() for _ in range(3)], [0, 3, 99], 3) == [0, 3, 6]


def test_the_first_drafts_of_a_batch_say_nothing_of_what_drafts_cost() -> None:
    """The first ones take fifty times what others do; the rule goes on trying until it has seen others."""
    costs, world = CostModel(), World(sure=(0.97, 0.97), stay=0.95, step=0.4)
    controller, steps = fresh(costs), iter([20.0, 20.0])
    observe = costs.observe_draft
    costs.observe_draft = lambda batch, passes, ms: observe(batch, passes, next(steps, ms))  # type: ignore[method-assign]
    play(controller, costs, [world] * 8, 4)
    assert costs.timely == 4 and costs.draft_ms(8, 1) == pytest.approx(0.4, rel=0.01)
    assert play(controller, costs, [world] * 8, 40).drafted > 200


def test_where_all_drafts_begin_late_it_speaks_in_the_end() -> None:
    costs = CostModel()
    controller = fresh(costs)
    for number in range(TRIED_ENOUGH):
        row = controller.start()
        assert controller.plan([row], [20], 1) == [1 + number % 2]
        costs.unread = 9
        costs.observe_draft(1, 1, 0.2)
        costs.observe_verify(1, 2, 4.0)
        row.observe(Observation(1, 1, 1))
    assert costs.timely == 0
    row = controller.start()
    assert controller.plan([row], [20], 1) == [0]  # the first choice: a plain round, which was never timed
    costs.observe_verify(1, 1, 4.0)
    row.observe(Observation(0, 0, 0))
    assert controller.plan([row], [20], 1) == [20]
