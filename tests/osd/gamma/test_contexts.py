"""After which tokens a draft is right: worked by hand, and what goodput makes of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from osd.gamma.base import CostModel, Go, Observation
from osd.gamma.book import leaning
from osd.gamma.compiled import new_contexts
from osd.gamma.contexts import (
    CONTEXT_KEEPS,
    CONTEXT_PRIOR,
    NO_CONTEXT,
    SLOTS,
    Peak,
    odds_after,
    odds_at,
    saw_at,
    slot_of,
    slots_of,
)
from osd.gamma.goodput import GoodputController
from osd.gamma.last_token import SKIPS
from tests.osd.gamma.worlds import known_costs

GOOD, BAD, NEXT, WRONG = 3, 5, 9, 11
"""Tokens: after one the draft is right, after the other wrong."""
Right = Callable[[int], bool]
"""Whether a draft after this place of a text is right."""
Seen = tuple[int, bool, int]
"""A round: after which token, whether its draft would be right, tokens drafted."""


def test_two_verdicts_worked_by_hand() -> None:
    contexts, here = new_contexts(), slots_of(GOOD, NEXT)
    assert odds_at(contexts, *here, 0.0) == 1.0
    saw_at(contexts, *here, 0.0, 0.25, 1.0)  # after GOOD 1.7 are accepted, 0.7 refused; 0.95 were expected, 1.45 not
    after = 1.7 * 1.45 / (0.7 * 0.95)
    assert odds_after(contexts, here[0], 0.0) == pytest.approx(after)
    assert odds_at(contexts, *here, 0.0) == pytest.approx(after * after)  # the pair knew nothing else either
    saw_at(contexts, *here, 0.0, 0.25, 0.0)
    back = (1 - CONTEXT_KEEPS) * CONTEXT_PRIOR
    accepted, refused, wanted, unwanted = (
        CONTEXT_KEEPS * before + back + new for before, new in ((1.7, 0), (0.7, 1), (0.95, 0.25), (1.45, 0.75))
    )
    assert odds_after(contexts, here[0], 0.0) == pytest.approx(accepted * unwanted / (refused * wanted))
    told = leaning(after, 0.25)  # what the last token tells is not the pair's to tell
    between = accepted * (CONTEXT_KEEPS * 1.45 + back + 1 - told) / (refused * (CONTEXT_KEEPS * 0.95 + back + told))
    assert odds_at(contexts, *here, 0.0) == pytest.approx(odds_after(contexts, here[0], 0.0) * between)


def test_with_each_halving_half_of_what_is_known_goes() -> None:
    contexts, here = new_contexts(), slots_of(GOOD, NEXT)
    saw_at(contexts, *here, 0.0, 0.5, 1.0)
    # after three, an eighth of one token accepted and of a half that were expected to be and not
    left = (CONTEXT_PRIOR + 1 / 8) * (CONTEXT_PRIOR + 1 / 16) / (CONTEXT_PRIOR * (CONTEXT_PRIOR + 1 / 16))
    assert odds_after(contexts, here[0], 3.0) == pytest.approx(left)
    assert odds_after(contexts, here[0], 60.0) == pytest.approx(1.0)


def test_pairs_of_tokens_spread_over_their_lines() -> None:
    pairs = {slots_of(last, token)[1] for last in range(0, 50_000, 997) for token in range(0, 50_000, 997)}
    assert len(pairs) > 0.2 * SLOTS
    assert all(0 <= slot < SLOTS for slot in pairs)
    assert slot_of(SLOTS + 4) == slot_of(4) == 4


def test_before_a_text_there_is_no_context() -> None:
    assert slots_of(-1, 4) == NO_CONTEXT
    contexts = new_contexts()
    saw_at(contexts, *NO_CONTEXT, 0.0, 0.5, 1.0)
    assert (contexts == new_contexts()).all()
    assert odds_at(contexts, *NO_CONTEXT, 0.0) == odds_after(contexts, -1, 0.0) == 1.0


def played(controller: GoodputController, costs: CostModel, text: Sequence[int], right: Right) -> list[Seen]:
    """The rounds of a request alone that says this text, with a draft of equal peaks that is right where it says."""
    row, at, rounds = controller.start(), 0, []
    while at + 2 < len(text):
        last, now, token = text[at], right(at), text[at + 1] if right(at) else WRONG
        [gamma] = controller.plan([row], [9], 1)
        [go] = controller.steer([row], 1, [Peak(0.5, slots_of(last, token), token)]) if gamma else [Go.DECLINE]
        drafted = int(go != Go.DECLINE)
        accepted = drafted * now
        costs.observe_draft(1, gamma, 0.5 * gamma)
        costs.observe_verify(1, 1 + drafted, 4.0 + 0.2 * drafted)
        at += 1 + accepted
        row.observe(Observation(gamma, drafted, accepted, text[: at + 1]))
        rounds.append((last, now, drafted))
    return rounds


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
    (controller, costs), text = rule(), some_text(500, 6)
    played(controller, costs, text, lambda at: text[at] == GOOD)
    row, gammas = controller.start(), []
    for last in [BAD, BAD, BAD, BAD, GOOD, BAD]:
        [gamma] = controller.plan([row], [9], 1)
        gammas.append(gamma)
        if gamma:
            assert controller.steer([row], 1, [Peak(0.01)]) != [Go.ON]
        costs.observe_draft(1, gamma, 0.5 * gamma)
        costs.observe_verify(1, 1, 4.0)
        row.observe(Observation(gamma, 0, 0, [last]))
    assert gammas == [1, 0, 0, 0, 0, 1]
