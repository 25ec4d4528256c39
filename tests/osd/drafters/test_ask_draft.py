"""The draft is asked where it pays, and what is decoded is the target's own whether it is asked or rests."""

from __future__ import annotations

from itertools import cycle

import pytest

from osd.draft import Tree
from osd.drafters.ask_draft import AGAIN, FIRST, MOST, SELDOM, AskPolicy, Side, brought
from osd.drafters.mixed import MixedDrafter
from osd.gamma.base import CostModel
from storage.records import Request
from tests.lossless.test_lossless import serve
from tests.lossless.test_trees_lossless import COUNT, engine_of
from tests.support.models import alone, prompts, random_pair

BAD, GOOD = (Side(2.2, 3.0), Side(2.0, 2.0)), (Side(4.0, 3.0), Side(2.0, 2.0))


def run(worth: AskPolicy, rounds: int, rows: int, found: tuple[Side, Side]) -> int:
    """Rounds in which the draft was asked."""
    asked = 0
    for _ in range(rounds):
        if worth.asks(rows):
            asked += 1
            worth.saw(rows, *found)
    return asked


def test_a_draft_that_does_not_pay_is_asked_now_and_then() -> None:
    worth = AskPolicy()
    assert run(worth, FIRST, 1, BAD) == FIRST
    assert run(worth, AGAIN + 2 * AGAIN + 4 * AGAIN, 1, BAD) == 3, "more seldom each time"
    assert run(worth, 2 * AGAIN, 5, GOOD) == 2 * AGAIN, "another size of batch is judged by itself"
    run(worth, 2 * SELDOM, 1, BAD)
    assert run(worth, 8 * SELDOM, 1, BAD) == 8
    assert run(worth, SELDOM + 2 * AGAIN, 1, GOOD) >= 3, "and soon again where a round contradicts"


def test_a_new_version_is_asked_as_if_nothing_were_known() -> None:
    worth = AskPolicy()
    worth.meet({"v1"})
    run(worth, 4 * SELDOM, 1, BAD)
    worth.meet({"v1"})
    assert run(worth, AGAIN, 1, BAD) <= 1
    worth.meet({"v1", "v2"})
    assert run(worth, AGAIN // 2, 1, BAD) == FIRST
    worth.meet({"v2"})
    assert run(worth, AGAIN // 2, 1, BAD) == 0, "it is one of those that are known"


def test_a_draft_that_has_learned_is_asked_again() -> None:
    worth = AskPolicy()
    run(worth, MOST * AGAIN, 1, BAD)
    assert run(worth, 2 * MOST * AGAIN, 1, GOOD) > MOST * AGAIN
    assert run(worth, 10, 1, GOOD) == 10


def test_what_a_tree_would_have_brought() -> None:
    tree = Tree()
    first = tree.add(0, 5)
    tree.add(0, 6)
    tree.add(first, 7)
    assert [brought(tree, text) for text in ([9], [5, 9], [5, 7, 8], [6, 7, 8], [5, 7], [])] == [1, 2, 3, 2, 2, 0]
    assert brought(Tree(), [5, 7]) == 1, "the target's own token"


@pytest.mark.parametrize("batch", [1, 4])
def test_a_draft_that_rests_now_and_then_reads_what_it_missed(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = random_pair("llama", noise=0.2)
    asked = [Request(p, max_new_tokens=COUNT) for p in prompts(16, seed=4)]
    expected = {r.prompt_tokens: alone(pair.target.module, r.prompt_tokens, COUNT) for r in asked}
    engine = engine_of(pair, MixedDrafter, expected, serve__max_batch=batch)
    drafting = engine.drafting
    assert isinstance(drafting, MixedDrafter)
    drafting.sized = True
    turns, taken = cycle([True, False, False, True, False]), []
    monkeypatch.setattr(AskPolicy, "asks", lambda self, rows: taken.append(next(turns)) or taken[-1])
    observe, unread = CostModel.observe_draft, []

    def observed(self: CostModel, *timing: float) -> None:
        if not taken[-1]:
            unread.append(self.unread)
        observe(self, *timing)  # type: ignore[arg-type]

    monkeypatch.setattr(CostModel, "observe_draft", observed)
    judged: list[tuple[Side, Side]] = []
    monkeypatch.setattr(AskPolicy, "saw", lambda self, rows, *sides: bool(judged.append(sides)))
    assert serve(engine, asked) == list(expected.values())
    assert {True, False} <= set(taken) and 0 < len(judged) <= sum(taken)
    assert all(both.tokens >= 1 <= alone.tokens and both.ms > 0 < alone.ms for both, alone in judged)
    assert engine.stats.steps > len(judged)
    assert unread and not any(unread), "a proposer alone never begins late"
