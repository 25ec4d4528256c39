"""After which tokens a draft is right: worked by hand, and what goodput makes of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from osd.gamma.base import CostModel, DraftDecision, Observation
from osd.gamma.goodput.book import leaning
from osd.gamma.goodput.compiled import new_contexts
from osd.gamma.goodput.contexts import (
    AHEAD_PRIOR,
    CONTEXT_KEEPS,
    CONTEXT_PRIOR,
    KINDS,
    NO_CONTEXT,
    SLOTS,
    THREE_BEFORE,
    TWO_BEFORE,
    WITH_NEXT,
    chance_ahead,
    odds_beside,
    peak_of,
    saw_at,
    slot_of,
)
from osd.gamma.goodput.goodput import GoodputController
from osd.gamma.goodput.last_token import SKIPS
from tests.support.worlds import known_costs

GOOD, BAD, NEXT, WRONG = 3, 5, 9, 11
"""Tokens: after one the draft is right, after the other wrong."""
Right = Callable[[int], bool]
"""Whether a draft after this place of a text is right."""
Seen = tuple[int, bool, int]
"""A round: after which token, whether its draft would be right, tokens drafted."""


AROUND = 1, 2, GOOD, NEXT


def odds(accepted: float, refused: float, wanted: float, unwanted: float) -> float:
    """Of tokens accepted and refused, where so many were expected to be."""
    return accepted * unwanted / (refused * wanted)


def chain(kinds: int, chance: float, accepted: int) -> float:
    """The odds of a new context after one verdict: each kind learns beside what the one before makes of the chance,
    which of nothing known is the chance itself."""
    p = CONTEXT_PRIOR
    return odds(p + accepted, p + 1 - accepted, p + chance, p + 1 - chance) ** kinds


def backed_off(kinds: int, usual: float, accepted: int, weight: float = 1.0) -> float:
    """The chance ahead after one verdict, of which so many kinds know."""
    for _ in range(kinds):
        usual = (weight * accepted + AHEAD_PRIOR * usual) / (weight + AHEAD_PRIOR)
    return usual


def test_a_verdict_worked_by_hand() -> None:
    contexts = new_contexts()
    assert chance_ahead(contexts, *AROUND[:3], 0.0, 0.4) == pytest.approx(0.4)
    assert odds_beside(contexts, *AROUND, 0.0) == 1.0
    saw_at(contexts, *AROUND, 0.0, 0.25, 1.0)
    one = 1.28 / 1.7  # of one token accepted, and 0.7 of which 0.4 usually are
    two = (1 + 0.7 * one) / 1.7
    assert chance_ahead(contexts, *AROUND[:3], 0.0, 0.4) == pytest.approx((1 + 0.7 * two) / 1.7)
    assert odds_beside(contexts, *AROUND, 0.0) == pytest.approx((2.5 * 2.25 / (1.5 * 1.75)) ** 4)


def test_of_a_second_verdict_a_kind_learns_what_the_one_before_had_not_told() -> None:
    contexts = new_contexts()
    saw_at(contexts, *AROUND, 0.0, 0.25, 1.0)
    saw_at(contexts, *AROUND, 0.0, 0.25, 0.0)
    back, told, wanted, ahead = (1 - CONTEXT_KEEPS) * CONTEXT_PRIOR, 0.25, 1.0, 0.4
    first = chain(1, 0.25, 1)
    for _ in range(KINDS):
        counts = (
            CONTEXT_KEEPS * (CONTEXT_PRIOR + before) + back + now
            for before, now in ((1, 0), (0, 1), (0.25, told), (0.75, 1 - told))
        )
        wanted *= odds(*counts)
        told = leaning(first, told)
    assert odds_beside(contexts, *AROUND, 0.0) == pytest.approx(wanted)
    for _ in range(3):
        ahead = (CONTEXT_KEEPS + AHEAD_PRIOR * ahead) / (CONTEXT_KEEPS + 1 + AHEAD_PRIOR)
    assert chance_ahead(contexts, *AROUND[:3], 0.0, 0.4) == pytest.approx(ahead)


def test_less_is_known_after_other_tokens_the_further_they_differ() -> None:
    contexts = new_contexts()
    saw_at(contexts, *AROUND, 0.0, 0.25, 1.0)
    for kinds, before in ((3, (1, 2, GOOD)), (2, (9, 2, GOOD)), (1, (9, 9, GOOD)), (0, (1, 2, BAD))):
        assert chance_ahead(contexts, *before, 0.0, 0.4) == pytest.approx(backed_off(kinds, 0.4, 1))
    assert odds_beside(contexts, 1, 2, GOOD, WRONG, 0.0) == pytest.approx(chain(3, 0.25, 1))
    assert odds_beside(contexts, 9, 9, GOOD, NEXT, 0.0) == pytest.approx(chain(2, 0.25, 1))


def test_with_each_halving_half_of_what_is_known_goes() -> None:
    contexts, p = new_contexts(), CONTEXT_PRIOR
    saw_at(contexts, *AROUND, 0.0, 0.5, 1.0)
    # after three, an eighth of one token accepted and of a half that were expected to be and not
    assert chance_ahead(contexts, *AROUND[:3], 3.0, 0.4) == pytest.approx(backed_off(3, 0.4, 1, 1 / 8))
    assert odds_beside(contexts, *AROUND, 3.0) == pytest.approx(odds(p + 1 / 8, p, p + 1 / 16, p + 1 / 16) ** 4)
    assert chance_ahead(contexts, *AROUND[:3], 60.0, 0.4) == pytest.approx(0.4)
    assert odds_beside(contexts, *AROUND, 60.0) == pytest.approx(1.0)


def test_tokens_spread_over_lines_and_come_back_to_them() -> None:
    some = range(0, 50_000, 997)
    pairs = {slot_of(TWO_BEFORE, 0, second, last, 0) for second in some for last in some}
    triples = {slot_of(THREE_BEFORE, third, second, 4, 0) for third in some for second in some}
    nexts = {slot_of(WITH_NEXT, 0, 0, last, token) for last in some for token in some}
    for slots in (pairs, triples, nexts):
        assert len(slots) > 0.2 * SLOTS
        assert all(0 <= slot < SLOTS for slot in slots)
    for kind in range(KINDS):
        assert 0 <= slot_of(kind, -1, -1, 0, 0) < SLOTS
        assert slot_of(kind, 1, 2, SLOTS + 4, 9) == slot_of(kind, 1, 2, 4, 9)


def test_before_a_text_there_is_no_context() -> None:
    contexts = new_contexts()
    saw_at(contexts, *NO_CONTEXT, 0.0, 0.5, 1.0)
    assert (contexts == new_contexts()).all()
    assert odds_beside(contexts, *NO_CONTEXT, 0.0) == 1.0
    weigher = GoodputController(CostModel(), initial=1, maximum=1).weigher
    assert weigher.odds_after(weigher.start()) == 1.0


def played(controller: GoodputController, costs: CostModel, text: Sequence[int], right: Right) -> list[Seen]:
    """The rounds of a request alone that says this text, with a draft of equal peaks that is right where it says."""
    row, at, rounds = controller.start(), 0, []
    while at + 2 < len(text):
        last, now, token = text[at], right(at), text[at + 1] if right(at) else WRONG
        [gamma] = controller.plan([row], [9], 1)
        [go] = (
            controller.should_continue([row], 1, [peak_of(0.5, around(text, at, token), token)])
            if gamma
            else [DraftDecision.DECLINE]
        )
        drafted = int(go != DraftDecision.DECLINE)
        accepted = drafted * now
        costs.observe_draft(1, gamma, 0.5 * gamma)
        costs.observe_verify(1, 1 + drafted, 4.0 + 0.2 * drafted)
        at += 1 + accepted
        row.observe(Observation(gamma, drafted, accepted, text[: at + 1]))
        rounds.append((last, now, drafted))
    return rounds


def around(text: Sequence[int], at: int, token: int) -> tuple[int, int, int, int]:
    """The token's context after this place."""
    third, second, last = [-1, -1, -1, *text[: at + 1]][-3:]
    return third, second, last, token


def rule() -> tuple[GoodputController, CostModel]:
    costs = known_costs(0.5, lambda batch, tokens: 4.0 + 0.2 * (tokens > 1))
    return GoodputController(costs, initial=1, maximum=1), costs


def some_text(length: int, seed: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.choice([GOOD, BAD]) for _ in range(length)]


def share(rounds: Sequence[Seen], last: int) -> float:
    """Of the rounds after this token, those that drafted."""
    drafted = [count for token, _, count in rounds if token == last]
    return sum(drafted) / len(drafted)


def test_it_drafts_after_the_tokens_after_which_the_draft_is_right() -> None:
    text, (controller, costs) = some_text(500, 2), rule()
    late = played(controller, costs, text, lambda at: text[at] == GOOD)[100:]
    assert share(late, GOOD) > 0.95
    assert share(late, BAD) < 0.1


def test_what_has_become_right_is_found_out() -> None:
    text, (controller, costs) = some_text(2000, 3), rule()
    late = played(controller, costs, text, lambda at: (text[at] == GOOD) == (at < 500))[-200:]
    assert share(late, BAD) > 0.8
    assert share(late, GOOD) < 0.3


def test_one_bad_token_after_another_does_not_keep_a_good_draft_away() -> None:
    (controller, costs), text = rule(), some_text(500, 4)
    played(controller, costs, text, lambda at: text[at] == GOOD)
    bad = played(controller, costs, [BAD] * 200, lambda at: True)
    assert any(drafted for _, _, drafted in bad[: 2 * SKIPS])
    assert share(bad[60:], BAD) > 0.9


def test_of_several_rows_none_hangs_on_its_last_token_alone() -> None:
    """They rest and draft together: what one would skip, the other pays for."""
    (controller, costs), text = rule(), some_text(500, 5)
    played(controller, costs, text, lambda at: text[at] == GOOD)
    rows = [controller.start(), controller.start()]
    controller.plan(rows, [9, 9], 2)
    for row, last in zip(rows, (GOOD, BAD), strict=True):
        row.observe(Observation(0, 0, 0, [last]))
    [first, second] = controller.weigher.begin(rows)
    assert first == second


def test_a_draft_after_skipped_rounds_is_cut_short_as_any_other() -> None:
    """However it was found that a round is to be skipped, by deciding or in between."""
    (controller, costs), text = rule(), some_text(500, 7)
    played(controller, costs, text, lambda at: text[at] == GOOD)
    row, gammas = controller.start(), []
    for last in [BAD, BAD, BAD, BAD, GOOD, BAD]:
        [gamma] = controller.plan([row], [9], 1)
        gammas.append(gamma)
        if gamma:
            assert controller.should_continue([row], 1, [peak_of(0.01, (GOOD, BAD, BAD, WRONG))]) != [DraftDecision.ON]
        costs.observe_draft(1, gamma, 0.5 * gamma)
        costs.observe_verify(1, 1, 4.0)
        row.observe(Observation(gamma, 0, 0, [last]))
    assert gammas == [1, 0, 0, 0, 0, 1]
