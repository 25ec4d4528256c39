"""The compiled tree search beside the plain one, and what a maker promises."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from osd.draft_tree import TokenProposal
from osd.drafters.ngram.drafter import NgramDrafter, SearchSettings, share_out
from osd.drafters.ngram.table import Table, TableSettings
from tests.osd.drafters.ngram.test_table import text_of
from tests.support.plain_ngram import PlainTable, plain_search

SMALL = SearchSettings(searches=40, nodes=12, depth=5, breadth=6)
VARIANTS = {
    "default": SMALL,
    "matrix alone": SMALL.model_copy(update={"kappa": 0.0, "shortest": 2}),
    "longest decides": SMALL.model_copy(update={"kappa": 0.0}),
    "explores": SMALL.model_copy(update={"c1": 6.0, "c2": 3.0}),
    "no request": SMALL.model_copy(update={"weight": 0.0}),
    "many": SMALL.model_copy(update={"searches": 300, "nodes": 64, "breadth": 16, "depth": 12}),
    "one": SMALL.model_copy(update={"searches": 1}),
}


def accepted(proposal: TokenProposal, text: np.ndarray) -> int:
    """Count the text's first tokens that are in the tree, one below the other: what greedy verification accepts."""
    paths = {path for path, _ in paths_of(proposal)}
    return next((n for n in range(len(text)) if tuple(text[: n + 1].tolist()) not in paths), len(text))


def paths_of(proposal: TokenProposal) -> list[tuple[tuple[int, ...], int]]:
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(map(int, proposal.tokens), map(int, proposal.parents), strict=True):
        assert parent < len(paths)
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    assert len(set(paths)) == len(paths)
    return list(zip(paths, map(int, proposal.parents), strict=True))


@pytest.mark.parametrize("order", [2, 3, 4])
@pytest.mark.parametrize("name", VARIANTS)
def test_the_compiled_search_is_the_plain_one(order: int, name: str) -> None:
    settings = VARIANTS[name]
    if settings.shortest >= order:
        settings = settings.model_copy(update={"shortest": order - 1})
    table, plain = Table(TableSettings(order)), PlainTable(order)
    table.learn(text_of(0, 3000))
    plain.learn(text_of(0, 3000).tolist())
    maker = NgramDrafter(table, settings)
    texts = [text_of(seed, length) for seed, length in ((1, 300), (2, 7), (3, 1), (4, 0))]
    places = [maker.open(text) for text in texts]
    for text, found in zip(texts, maker.propose(places, texts), strict=True):
        own = PlainTable(order)
        own.learn(text.tolist())
        assert paths_of(found) == plain_search(plain, own, text.tolist(), settings)


def test_a_row_gets_the_same_tree_alone_and_in_a_batch_that_outgrows_its_room() -> None:
    table = Table(TableSettings(3))
    table.learn(text_of(0, 3000))
    maker, alone = NgramDrafter(table, SMALL), NgramDrafter(table, SMALL)
    texts = [text_of(seed, 50) for seed in range(20)]
    places = [maker.open(text) for text in texts]
    together = maker.propose(places, texts, [i % 13 for i in range(20)])
    for i, (text, found) in enumerate(zip(texts, together, strict=True)):
        place = alone.open(text)
        assert paths_of(alone.propose([place], [text])[0])[: i % 13] == paths_of(found)
        assert len(found) == min(i % 13, 12)
        alone.close(place)


def test_how_many_threads_share_a_batch_changes_no_tree() -> None:
    table = Table()
    table.learn(text_of(0, 3000))
    makers = [NgramDrafter(table, SMALL.model_copy(update={"threads": count})) for count in (1, 2, 5)]
    for rows in (1, 2, 3, 7, 7):  # the first two batches of several rows are done together, then alone
        texts = [text_of(seed, 50) for seed in range(rows)]
        found = [each.propose([each.open(text) for text in texts], texts) for each in makers]
        for one, *others in zip(*found, strict=True):
            assert all(paths_of(one) == paths_of(other) for other in others)
            assert one.chances is not None and len(one.chances) == len(one) and (one.chances > 0).all()


def test_what_a_part_of_a_batch_raises_is_raised_when_all_are_done() -> None:
    done: list[int] = []

    def part(worker: int, rows: slice) -> None:
        done.extend(range(rows.start, rows.stop))
        if worker != 1:
            raise ValueError(worker)

    with pytest.raises(ValueError):
        share_out(7, 3, part)
    assert sorted(done) == list(range(7))


def test_greedy_follows_the_likeliest_token() -> None:
    table = Table()
    table.learn(np.array([1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 2, 3, 9]))
    maker = NgramDrafter(table, SMALL.model_copy(update={"method": "greedy", "kappa": 0.0}))
    found = maker.propose([maker.open(np.array([1, 2]))], [[1, 2]])[0]
    assert found.tokens.tolist()[:3] == [3, 4, 5] and found.parents.tolist() == [-1, 0, 1, 2, 3]
    assert [len(path) for path, _ in paths_of(found)] == [1, 2, 3, 4, 5]


def test_what_the_request_said_weighs_more_and_ends_with_it() -> None:
    table = Table()
    table.learn(np.array([1, 2, 3] * 10))
    maker = NgramDrafter(table, SMALL.model_copy(update={"kappa": 0.0}))
    place = maker.open(np.array([1, 2, 8]))
    assert maker.propose([place], [[1, 2]])[0].tokens[0] == 8
    maker.close(place)
    assert maker.propose([maker.open(np.array([5]))], [[1, 2]])[0].tokens[0] == 3


def test_verified_tokens_are_learned_by_the_row_and_by_all() -> None:
    table, exact = Table(), SMALL.model_copy(update={"kappa": 0.0})
    maker = NgramDrafter(table, exact)
    place, text = maker.open(np.array([4, 5])), np.array([4, 5, 6, 7])
    assert len(maker.propose([place], [[4, 5]])[0]) > 0  # from what it said of 5 alone
    maker.learn(place, text, 2)
    other = NgramDrafter(table, exact)
    proposal = other.propose([other.open(np.array([4, 5]))], [[4, 5]])[0]
    assert accepted(proposal, np.array([6, 7, 1])) == 2
    assert table.learned == 2


def test_an_empty_table_proposes_nothing() -> None:
    maker = NgramDrafter(Table(), SMALL)
    assert len(maker.propose([maker.open(np.zeros(0, np.int64))], [[]])[0]) == 0


def test_a_budget_of_time_is_so_many_searches_as_fit() -> None:
    table = Table()
    table.learn(text_of(0, 3000))
    maker = NgramDrafter(table, SMALL.model_copy(update={"budget_us": 200.0}))
    place = maker.open(np.array([1, 2]))
    for _ in range(5):
        assert len(maker.propose([place], [[1, 2]])[0]) > 0
    assert 1 <= maker.searches_for(8) <= maker.searches_for(1) <= 4096


@pytest.mark.parametrize(
    "wrong", [{"searches": 0}, {"nodes": 0}, {"c2": 0.0}, {"budget_us": 0.0}, {"kappa": -1.0}, {"breadth": 65}]
)
def test_settings_out_of_range_are_named(wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        SearchSettings(**wrong)
