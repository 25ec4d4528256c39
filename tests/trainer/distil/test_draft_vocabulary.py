"""Which tokens a draft vocabulary holds."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from storage.insights.tokens import TokenUse, token_use
from storage.records import Route
from storage.store import Store
from tests.storage.make import add_root, samples
from trainer.distil.draft_learner import most_used

COUNTS = st.lists(st.integers(0, 3), min_size=12, max_size=12)


def use(answers: list[int], prompts: list[int]) -> TokenUse:
    return TokenUse(np.array(answers), np.array(prompts))


def test_answers_then_prompts_then_the_lowest_numbers() -> None:
    counted = use([0, 0, 5, 0, 7, 0, 0, 0], [0, 0, 0, 0, 0, 2, 0, 9])
    assert most_used(counted, 2, frozenset()).tolist() == [2, 4]
    assert most_used(counted, 4, frozenset()).tolist() == [2, 4, 5, 7]
    assert most_used(counted, 6, frozenset()).tolist() == [0, 1, 2, 4, 5, 7]
    assert most_used(counted, 3, frozenset({6})).tolist() == [2, 4, 6]  # an end token takes a place


@given(COUNTS, COUNTS, st.integers(1, 12), st.frozensets(st.integers(0, 14), max_size=3))
def test_as_many_as_asked_each_once_and_none_left_out_is_used_more(
    answers: list[int], prompts: list[int], size: int, ends: frozenset[int]
) -> None:
    chosen = most_used(use(answers, prompts), size, ends).tolist()
    known = {token for token in ends if token < 12}
    assert chosen == sorted(set(chosen)) and len(chosen) == max(size, len(known)) and known <= set(chosen)
    by_use = [(answers[token], prompts[token], -token) for token in range(12)]
    others = set(chosen) - known
    assert all(by_use[a] > by_use[b] for a in others for b in set(range(12)) - set(chosen))


def test_only_tokens_of_the_drafts_own_requests_are_counted(store: Store, tmp_path) -> None:
    add_root(store, tmp_path / "zero")
    add_root(store, tmp_path / "one", "other")
    store.routes.add(Route("sql", "other", {"language": ["sql"]}))
    own = [samples(number, tokens=np.array([7, 7, 7, 7, 7, 3, 4, 3, 60_000], np.int32)) for number in range(3)]
    store.samples.add([*own, samples(9, route="sql")])
    counted = token_use(store, "default", 50_000, 100)
    held = sum(row.holdout for row in store.samples.stats() if row.route == "default")
    left = 3 - held
    assert (counted.answers[3], counted.answers[4], counted.answers.sum()) == (2 * left, left, 3 * left)
    assert counted.prompts[7] == counted.prompts.sum() == 5 * left
    assert token_use(store, "default", 50_000, 1).answers.sum() <= 3
