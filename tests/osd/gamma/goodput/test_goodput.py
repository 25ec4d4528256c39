"""The rule, in worlds of known costs and acceptance; its search beside trying everything."""

from __future__ import annotations

import random

import pytest

from osd.gamma.base import CostModel, DraftDecision, Observation
from osd.gamma.goodput.goodput import GoodputController
from osd.gamma.goodput.prices import Prices
from storage.errors import BadSetting
from storage.settings.drafting import GoodputSettings
from tests.support.settings import settings_of

PLAIN, DRAFT, TOKEN = 10.0, 1.0, 0.1


def timed(batch: int, draft: float = DRAFT) -> CostModel:
    costs = CostModel()
    for _ in range(8):
        for depth in range(13):
            costs.observe_draft(batch, depth, draft * depth)
            costs.observe_verify(batch, batch * (depth + 1), PLAIN + TOKEN * batch * depth)
    return costs


def rule_of(batch: int) -> GoodputController:
    return GoodputController(timed(batch), maximum=12, settings=GoodputSettings())


def play(
    accepts: float, batch: int, rounds: int, seed: int = 0, sure: bool = True, rule: GoodputController | None = None,
    own: int | None = None,
) -> tuple[float, list[int]]:  # fmt: skip
    """Tokens a millisecond ÷ plain decoding's, and tokens drafted, round by round; the draft is as sure of a token
    as it is likely to be accepted, or (not ``sure``) always nearly certain. ``own`` of the batch's rows are the rule's,
    the others decode plainly."""
    chance, rule, own = random.Random(seed), rule or rule_of(batch), own or batch
    costs = rule.joint
    rows = [rule.start() for _ in range(own)]
    tokens, ms, drafted = 0, 0.0, []
    for _ in range(rounds):
        lengths, passes = rule.plan(rows, [99] * own, batch), 0
        tokens += batch - own
        while passes < max(lengths):
            passes += 1
            going = [i for i in range(own) if lengths[i] >= passes]
            signals = [(accepts if sure else 0.97, 5) for _ in going]
            for i, go in zip(going, rule.should_continue([rows[i] for i in going], passes, signals), strict=True):
                if go is not DraftDecision.ON:
                    lengths[i] = passes if go else passes - 1
        ms += PLAIN + DRAFT * passes + TOKEN * sum(lengths)
        drafted.append(sum(lengths))
        for row, length in zip(rows, lengths, strict=True):
            taken = 0
            while taken < length and chance.random() < accepts:
                taken += 1
            tokens += taken + 1
            row.observe(Observation(length, length, taken, [chance.randrange(40)]))
        costs.observe_verify(batch, batch + drafted[-1], PLAIN + TOKEN * drafted[-1])
    return tokens * PLAIN / (batch * ms), drafted


@pytest.mark.parametrize("own", [2, 4, 7])
def test_rows_of_other_rules_in_the_batch_are_not_held_against_drafts(own: int) -> None:
    """Each request with a gamma of its own, each draft beside the first, has another rule."""
    speed, drafted = play(0.9, 8, 600, own=own)
    assert speed > 1 + 0.08 * own and sum(drafted[-100:]) > 100 * own
    speed, drafted = play(0.01, 8, 300, own=own)
    assert speed > 0.97 and sum(drafted[-50:]) < 0.1 * 50 * own


@pytest.mark.parametrize("batch", [1, 8])
def test_a_good_draft_is_used_and_a_hopeless_one_costs_next_to_nothing(batch: int) -> None:
    good, _ = play(0.9, batch, 300)
    assert good > 2.2  # a fixed gamma of 6 or 8 makes 2.9 at one row, 2.3 at eight
    for sure in (True, False):
        speed, drafted = play(0.01, batch, 1000 // batch, sure=sure)
        assert speed > 0.97
        assert sum(drafted[-50:]) < 0.1 * 50 * batch


def test_a_target_that_moves_grants_no_new_tries_and_a_judged_draft_is_believed() -> None:
    """What was believed of the draft about the target before is doubted."""
    told, fresh = rule_of(4), rule_of(4)
    play(0.01, 4, 200, sure=False, rule=told)
    after = rule_of(4)
    after.begin_after(told)
    assert after.acceptance.first.var == fresh.acceptance.first.var > told.acceptance.first.var
    tries, usual = (sum(play(0.01, 4, 60, 1, sure=False, rule=rule)[1]) for rule in (after, fresh))
    assert tries < usual / 2
    after.expect(0.9)
    assert min(play(0.9, 4, 5, rule=after)[1]) > 0


def test_a_few_rounds_of_a_hopeless_draft_that_is_sure_of_itself_cost_a_stake_or_two() -> None:
    """The stake is what may be lost as far as the rule can tell, and here it is deceived."""
    speed, _ = play(0.0, 32, 36, sure=False)
    assert speed >= 1 - (2 * 16 + 0.005 * 32 * 36 + 32 * 0.2) / (32 * 36)


def test_the_depth_is_the_best_of_all_that_there_are() -> None:
    chance, rule = random.Random(4), GoodputController(timed(4), maximum=12, settings=GoodputSettings())
    rule._batch = 4
    for _ in range(200):
        draft = [0.0]
        for _ in range(14):
            draft.append(draft[-1] + chance.uniform(0.02, 0.3))
        verify = [0.0]
        for _ in range(60):
            verify.append(verify[-1] + chance.choice([0.0, 0.0, 0.05]))
        rows = [(chance.random(), chance.random()) for _ in range(4)]
        found = rule._best(Prices(0, 0, draft, 0.02, verify, 0.0), rows, 1.3)
        tokens = [sum(p * f**j for p, f in rows for j in range(k)) for k in range(13)]
        worth = [some - 1.3 * 4 * (draft[k] + verify[4 * k]) for k, some in enumerate(tokens)]
        assert found[1] == pytest.approx(max(worth))
        assert worth[found[0]] == pytest.approx(max(worth))


def test_a_draft_goes_on_by_what_a_head_says_of_its_tokens() -> None:
    def drafted(estimate: float) -> int:
        rule = GoodputController(timed(1), maximum=12, settings=GoodputSettings(head=True))
        rule.credit, row, length = 99.0, rule.start(), 0
        for _ in range(40):  # tokens are accepted where the head says so
            chance, length = random.Random(7), rule.plan([row], [99], 1)[0]
            for passes in range(1, length + 1):
                (go,) = rule.should_continue([row], passes, [(0.9, 5)], [0.9 if passes == 1 else estimate])
                if go is not DraftDecision.ON:
                    length = passes
                    break
            taken = 0
            while taken < length and chance.random() < estimate:
                taken += 1
            row.observe(Observation(length, length, taken, [chance.randrange(40)]))
        return length

    assert drafted(0.95) > drafted(0.6) > 0
    assert GoodputController(timed(1), maximum=12, settings=GoodputSettings()).reads_head is False


def test_before_anything_was_timed_one_row_tries_a_token() -> None:
    rule = GoodputController(CostModel(), maximum=12, settings=GoodputSettings())
    assert rule.plan([rule.start() for _ in range(3)], [0, 9, 9], 3) == [0, 1, 0]


def test_rooms_are_kept() -> None:
    rule = GoodputController(timed(2), maximum=12, settings=GoodputSettings())
    assert max(rule.plan([rule.start(), rule.start()], [0, 2], 2)) <= 2
    assert rule.plan([rule.start(), rule.start()], [0, 0], 2) == [0, 0]


def test_without_signals_it_learns_from_what_was_accepted() -> None:
    """As with trees, whose proposers tell nothing of a pass."""
    rule = GoodputController(timed(1), maximum=12, settings=GoodputSettings())
    row, drafted = rule.start(), []
    for _ in range(150):
        [gamma] = rule.plan([row], [99], 1)
        row.observe(Observation(gamma, gamma, 0, [3]))
        drafted.append(gamma)
    assert drafted[0] > 2 and sum(drafted[-50:]) < 10  # now and then it looks again


def test_settings_out_of_range_are_named() -> None:
    for key, value in (("memory", 1), ("share", 1.0), ("spread", 0.0), ("stake", -1)):
        with pytest.raises(BadSetting, match=rf"gamma\.goodput\.{key}"):
            settings_of(**{f"gamma__goodput__{key}": value})


def nearly_paying() -> CostModel:
    """A drafted token for 0.7 plain passes, and 0.02 for each token that is read before."""
    costs = CostModel()
    for _ in range(8):
        for depth in (1, 2, 4):
            costs.observe_draft(1, depth, 0.5 * depth * PLAIN)
            costs.observe_verify(1, 1 + depth, (1 + 0.2 * depth) * PLAIN)
        costs.observe_verify(1, 1, PLAIN)
        costs.unread = 100
        costs.observe_draft(1, 1, (0.5 + 2) * PLAIN)
        costs.unread = 0
    return costs


def test_a_draft_that_is_not_yet_known_to_be_bad_is_tried_and_judged() -> None:
    rule = GoodputController(nearly_paying(), maximum=12, settings=GoodputSettings())
    row = rule.start()
    assert rule.plan([row], [99], 1) == [1], "half of the stake pays for it"
    assert rule.should_continue([row], 1, [(0.01, 5)]) == [DraftDecision.LAST], "however unsure the draft is"


def test_a_prompt_is_read_for_several_tries_or_for_none() -> None:
    rule = GoodputController(nearly_paying(), maximum=12, settings=GoodputSettings(stake=16, share=0.0))
    assert [rule.plan([rule.start()], [99], 1, [unread]) for unread in (300, 200, 100)] == [[0], [0], [1]]


def test_what_tenants_bring_who_share_a_batch_is_counted_where_it_is_planned() -> None:
    """Rows of two tenants, planned together, come and go while drafting is far from paying: nothing is lost of what
    they bring, and what buys tries fills."""
    costs = timed(2, draft=8.0)
    tenants = [GoodputController(costs, maximum=12, settings=GoodputSettings()) for _ in range(2)]
    joint = GoodputController(costs, maximum=12, settings=GoodputSettings())
    rows = [tenant.start() for tenant in tenants]
    for number in range(600):
        if number % 3 == 0:
            rows[number % 2] = tenants[number % 2].start()
        lengths = joint.plan(rows, [99, 99], 2)
        if drafting := [row for row, length in zip(rows, lengths, strict=True) if length]:
            joint.should_continue(drafting, 1, [(0.3, 5)] * len(drafting))
        for row, length in zip(rows, lengths, strict=True):
            row.observe(Observation(length, length, 0, [7]))
            assert row.rule is joint, "it was planned by another"
        assert not any(tenant.emitted for tenant in tenants)
    assert joint.credit > 0
