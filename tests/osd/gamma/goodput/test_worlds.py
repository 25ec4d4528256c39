"""goodput in worlds whose costs and acceptance are known: against the best that can be done, and where it must rest."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from osd.gamma.base import CostModel, Observation
from osd.gamma.goodput.goodput import GoodputController, GoodputRow
from storage.settings.drafting import GoodputSettings

Verify = Callable[[int, int], float]
"""Milliseconds of a target pass over B rows and N tokens in all."""
DEAR: Verify = lambda batch, tokens: 4 + 0.1 * tokens  # noqa: E731


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

    @property
    def rate(self) -> float:
        return self.emitted / self.ms


NEVER = World(sure=(0.97, 0.0), unsure=(0.25, 0.0))


def fresh(costs: CostModel, maximum: int = 20) -> GoodputController:
    return GoodputController(costs, maximum=maximum, settings=GoodputSettings())


def play(rule: GoodputController, costs: CostModel, worlds: Sequence[World], rounds: int, seed: int = 0) -> Played:
    """New rows of one batch, each with a world of its own; the first world's costs hold for all."""
    chance, played = random.Random(seed), Played()
    rows: list[GoodputRow] = [rule.start() for _ in worlds]
    batch = len(rows)
    for _ in range(rounds):
        gammas = rule.plan(rows, [20] * batch, batch)
        lengths, chains, passes = list(gammas), [world.chain(chance) for world in worlds], 0
        while passes < max(lengths):
            passes += 1
            going = [i for i in range(batch) if lengths[i] >= passes]
            peaks = [(chains[i][passes - 1][0], chance.randrange(50)) for i in going]
            for i, go in zip(going, rule.should_continue([rows[i] for i in going], passes, peaks), strict=True):
                lengths[i] = min(lengths[i], (passes - 1, passes, lengths[i])[go])
        draft_ms, tokens = passes * worlds[0].step, batch + sum(lengths)
        costs.observe_draft(batch, passes, draft_ms)
        costs.observe_verify(batch, tokens, worlds[0].verify(batch, tokens))
        played.ms += draft_ms + worlds[0].verify(batch, tokens)
        for row, gamma, length, chain in zip(rows, gammas, lengths, chains, strict=True):
            verdicts = [accepted for _, accepted in chain[:length]]
            accepted = verdicts.index(False) if False in verdicts else length
            row.observe(Observation(gamma, length, accepted, [chance.randrange(50)]))
            played.emitted, played.drafted = played.emitted + accepted + 1, played.drafted + length
    return played


def fixed(world: World, gamma: int, rounds: int) -> float:
    """Tokens a millisecond of always drafting ``gamma`` tokens for one row."""
    chance, emitted = random.Random(2), 0
    for _ in range(rounds):
        verdicts = [accepted for _, accepted in world.chain(chance)[:gamma]]
        emitted += 1 + (verdicts.index(False) if False in verdicts else gamma)
    return emitted / (rounds * (gamma * world.step + world.verify(1, 1 + gamma)))


def test_it_beats_every_fixed_gamma_where_drafts_say_how_sure_they_are() -> None:
    world, costs = World(), CostModel()
    play(rule := fresh(costs), costs, [world], 400, seed=1)
    assert play(rule, costs, [world], 2000, seed=2).rate > 1.1 * max(fixed(world, gamma, 2000) for gamma in range(13))


@pytest.mark.parametrize("batch", [1, 8, 32])
@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("token_ms", [0.0, 0.1])
def test_what_is_always_refused_is_soon_drafted_no_more_and_tried_now_and_then(
    batch: int, told: bool, token_ms: float
) -> None:
    """``told``: whether passes say how sure the draft is, as tables and trees do not."""
    costs, drafted, passes = CostModel(), list[int](), 0
    rule = fresh(costs)
    rows = [rule.start() for _ in range(batch)]
    for _ in range(400):
        lengths = rule.plan(rows, [99] * batch, batch)
        if told and any(lengths):
            going = [i for i in range(batch) if lengths[i]]
            answers = rule.should_continue([rows[i] for i in going], 1, [(0.97, 5)] * len(going))
            for i, go in zip(going, answers, strict=True):
                lengths[i] = min(1, go)
        costs.observe_draft(batch, max(lengths), 0.5 * max(lengths))
        costs.observe_verify(batch, batch + sum(lengths), 4 + token_ms * sum(lengths))
        for row, length in zip(rows, lengths, strict=True):
            row.observe(Observation(length, length, 0, [3]))
        drafted.append(sum(lengths))
        passes += len(drafted) > 100 and drafted[-1] > 0
    assert max(drafted[:20]) > 0 and 0 in drafted[:60]
    assert passes < 0.1 * 300  # each costs an eighth of a round


@pytest.mark.parametrize("batch", [1, 8, 32])
def test_a_hopeless_draft_costs_next_to_nothing(batch: int) -> None:
    world, costs = World(sure=(0.97, 0.0), unsure=(0.25, 0.0), verify=DEAR), CostModel()
    played = play(fresh(costs), costs, [world] * batch, 1000)
    assert played.ms < 1.02 * 1000 * DEAR(batch, batch) and played.drafted > 0  # it went on trying


@pytest.mark.parametrize("batch", [1, 8])
def test_a_draft_that_nearly_pays_loses_no_more_than_it_may(batch: int) -> None:
    """A token is worth 0.84 of its pass; drafting one every round would lose 3.2 %."""
    costs, world = CostModel(), World(sure=(0.21, 0.21), unsure=(0.21, 0.21), step=1.0)
    play(rule := fresh(costs), costs, [world] * batch, 1000)
    assert play(rule, costs, [world] * batch, 4000 // batch, seed=1).rate > 0.985 * batch / 4.0


def test_it_starts_again_when_the_draft_becomes_good() -> None:
    costs = CostModel()
    rule = fresh(costs)
    for seed in range(30):
        play(rule, costs, [NEVER], 50, seed)
    assert max(play(rule, costs, [World()], 60, seed).rate for seed in range(60)) > 1.5 / 4.0
    assert play(rule, costs, [World()], 1000).rate > 2 / 4.0


def test_one_unlucky_text_does_not_keep_an_engine_from_drafting() -> None:
    costs, good = CostModel(), World(sure=(0.5, 0.6), unsure=(0.5, 0.6))
    rule = fresh(costs)
    play(rule, costs, [World(sure=(0.5, 0.0), unsure=(0.5, 0.0))], 60)
    assert min(play(rule, costs, [good], 60, seed).drafted for seed in range(3, 12)) > 30


def test_traffic_that_turns_good_is_noticed_within_a_few_requests() -> None:
    dull, clear = (World(sure=kind, unsure=kind, step=1.6) for kind in ((0.25, 0.1), (0.97, 0.95)))
    costs = CostModel()
    rule = fresh(costs)
    for seed in range(60):
        play(rule, costs, [dull], 60, seed)
    drafted = [play(rule, costs, [clear], 60, seed).drafted for seed in range(20)]
    assert min(drafted[12:]) > 120


def test_rows_of_one_batch_draft_as_much_as_each_is_worth() -> None:
    good = World(step=0.2, verify=lambda batch, tokens: 4 + 0.4 * tokens)
    costs = CostModel()
    rule = fresh(costs)
    play(rule, costs, [good] * 4 + [NEVER] * 4, 200)
    lengths: list[list[int]] = [[], []]
    rows = [rule.start() for _ in range(2)]
    for _ in range(60):
        gammas = rule.plan(rows, [20, 20], 2)
        peaks = [(0.97, 1) for gamma in gammas if gamma]
        going = [row for row, gamma in zip(rows, gammas, strict=True) if gamma]
        answers = iter(rule.should_continue(going, 1, peaks) if peaks else [])
        for own, row, gamma, accepted in zip(lengths, rows, gammas, (1, 0), strict=True):
            own.append(min(1, next(answers)) if gamma else 0)
            row.observe(Observation(gamma, own[-1], min(accepted, own[-1]), [1]))
    assert sum(lengths[0]) > 2 * sum(lengths[1])


def test_when_drafting_grows_dear_it_drafts_less() -> None:
    costs = CostModel()
    rule = fresh(costs)
    before = play(rule, costs, [World(step=0.3)], 400).drafted
    play(rule, costs, [World(step=3.0)], 200)
    assert play(rule, costs, [World(step=3.0)], 400).drafted < before / 3


def test_what_the_first_rounds_say_of_a_machine_that_is_still_starting_is_not_believed_for_ever() -> None:
    asked = 0

    def verify(batch: int, tokens: int) -> float:
        nonlocal asked
        asked += 1
        return 40.0 if tokens > batch and asked <= 2 * 100 else 4.0  # play asks twice a round

    costs = CostModel()
    rule, world = fresh(costs), World(step=1.5, verify=verify)
    for seed in range(40):
        play(rule, costs, [world], 100, seed)
    assert play(rule, costs, [world], 400, seed=1).drafted > 400


def test_a_prompt_that_is_dear_to_read_is_not_read_for_a_few_tokens() -> None:
    costs = CostModel()
    rule = fresh(costs)
    play(rule, costs, [World()], 400)
    for _ in range(8):
        costs.observe_verify(1, 1, 4.0)
        costs.unread = 100
        costs.observe_draft(1, 2, 1.0 + 100.0)  # 1 ms for each token that is read
    costs.unread = 0
    for _ in range(64):
        costs.observe_verify(1, 1, 4.0)
    assert rule.plan([rule.start()], [60], 1, [700]) == [0]  # 700 ms to win at most 60 tokens of 4 ms
    assert rule.plan([rule.start()], [60], 1, [10]) == [20]
