"""Prompt lookup and suffix matching beside searches that look everywhere."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from benchmarks.trees.suffix_index import DEPTH, SuffixIndex, sort_positions
from osd.drafters.ngram import BadTable
from osd.drafters.ngram.lookup import MatchSettings, PromptLookup
from tests.osd.drafters.ngram.test_search import accepted, paths_of


def plain_lookup(text: list[int], chosen: MatchSettings) -> list[tuple[int, ...]]:
    """The sequences of the tree, in the order in which they come."""
    ranked = []
    for end in range(len(text) - 1, 0, -1):
        length = 0
        while length < min(chosen.longest, end) and text[end - 1 - length] == text[-1 - length]:
            length += 1
        if length >= chosen.shortest:
            ranked.append((-length, -end))
    paths: list[tuple[int, ...]] = []
    for _, end in sorted(ranked)[: chosen.matches]:
        after = text[-end : -end + chosen.length]
        paths += [path for i in range(len(after)) if (path := tuple(after[: i + 1])) not in paths]
    return paths[: chosen.nodes]


@pytest.mark.parametrize("vocabulary", [2, 5, 60])
def test_lookup_is_the_plain_one(vocabulary: int) -> None:
    rng = np.random.default_rng(vocabulary)
    for length in (0, 1, 2, 3, 9, 40, 400):
        for settings in (MatchSettings(), MatchSettings(longest=2, shortest=1, matches=9, length=3, nodes=7)):
            text = rng.integers(0, vocabulary, length)
            found = PromptLookup(settings).propose([text])[0]
            assert [path for path, _ in paths_of(found)] == plain_lookup(text.tolist(), settings)


def test_lookup_proposes_what_stood_after_the_longest_match_first() -> None:
    found = PromptLookup(MatchSettings(matches=2, length=2)).propose([np.array([1, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3])])[0]
    assert [path for path, _ in paths_of(found)] == [(4,), (4, 9), (5,), (5, 1)]


def plain_suffix(texts: list[list[int]], text: list[int], chosen: MatchSettings) -> Counter[tuple[int, ...]]:
    """How often each continuation followed the longest suffix."""
    for n in range(min(chosen.longest, len(text)), chosen.shortest - 1, -1):
        counts: Counter[tuple[int, ...]] = Counter()
        for other in texts:
            for i in range(len(other) - n + 1):
                if other[i : i + n] == text[-n:]:
                    after = other[i + n : i + n + chosen.length]
                    counts.update(tuple(after[: j + 1]) for j in range(len(after)))
        if counts:
            return counts
    return Counter()


@pytest.mark.parametrize("vocabulary", [2, 8, 50])
def test_suffixes_are_the_plain_ones(vocabulary: int) -> None:
    rng = np.random.default_rng(vocabulary)
    texts = [rng.integers(0, vocabulary, length) for length in (0, 1, 30, 200, 61)]
    settings = MatchSettings(matches=500, nodes=14, length=4)
    index = SuffixIndex(texts, settings)
    for length in (0, 1, 2, 5, 30):
        text = rng.integers(0, vocabulary, length)
        expected = plain_suffix([other.tolist() for other in texts], text.tolist(), settings)
        paths = [path for path, _ in paths_of(index.propose([text])[0])]
        counts = [expected[path] for path in paths]
        assert counts == sorted(expected.values(), reverse=True)[:14]


def test_positions_are_sorted_by_what_begins_there() -> None:
    stream = np.random.default_rng(0).integers(-1, 3, 500).astype(np.int32)
    order = sort_positions(stream)
    texts = [stream[at : at + DEPTH].tolist() for at in order]
    assert texts == sorted(texts) and sorted(order.tolist()) == list(range(500))


def test_no_match_reaches_from_one_text_to_the_next() -> None:
    index = SuffixIndex([np.array([1, 2]), np.array([3, 4])])
    assert len(index.propose([np.array([1, 2])])[0]) == 0
    assert len(SuffixIndex([]).propose([np.array([1, 2])])[0]) == 0


def test_what_greedy_verification_accepts_of_a_tree() -> None:
    found = PromptLookup(MatchSettings(matches=2, length=2)).propose([np.array([1, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3])])[0]
    assert accepted(found, np.array([5, 1, 7])) == 2 and accepted(found, np.array([6])) == 0


def test_a_longest_match_beyond_what_the_stream_is_sorted_by_is_named() -> None:
    with pytest.raises(BadTable, match="longest"):
        SuffixIndex([], MatchSettings(longest=DEPTH + 1))
