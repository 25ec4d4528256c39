"""The compiled table beside the plain one, its bounds, and several threads on it."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from osd.drafters.ngram import BadTable
from osd.drafters.ngram.cells import CONTEXTS, KEY_BITS, MOST, NO_TOKENS, USED, Cells, entries_of, find
from osd.drafters.ngram.corpus_stats import tokens_of_key
from osd.drafters.ngram.table import SMALLEST, Lists, Table, TableSettings, bytes_for, table_from
from tests.support.plain_ngram import PlainTable


def text_of(seed: int, length: int, vocabulary: int = 40) -> np.ndarray:
    """Tokens of which a few are frequent."""
    return np.random.default_rng(seed).zipf(1.3, length).clip(max=vocabulary) - 1


def lists_of(lists: Lists) -> dict[tuple[int, ...], list[list[int]]]:
    found, end = {}, 0
    for key, length in zip(lists.keys.tolist(), lists.lengths.tolist(), strict=True):
        entries = lists.entries[end : end + length].tolist()
        found[tokens_of_key(key)] = [[entry & 0xFFFFF, entry >> 20] for entry in entries]
        end += length
    return found


@pytest.mark.parametrize("order", [2, 3, 4])
@pytest.mark.parametrize("vocabulary", [3, 40, 300])
def test_the_compiled_table_is_the_plain_one(order: int, vocabulary: int) -> None:
    table, plain = Table(TableSettings(order)), PlainTable(order)
    for seed, start in ((1, 0), (2, 3), (3, 500)):
        text = text_of(seed, 4000, vocabulary)
        table.learn(text, start)
        plain.learn(text.tolist(), start)
    assert table.evicted == 0
    assert lists_of(table.snapshot()) == plain.lists


def test_a_full_count_halves_its_list() -> None:
    table, plain = Table(TableSettings(2)), PlainTable(2)
    text = np.array([7, 8, 7, 9] + [7, 7] * (MOST + 50))
    table.learn(text)
    plain.learn(text.tolist())
    assert lists_of(table.snapshot()) == plain.lists
    assert max(count for _, count in plain.lists[(7,)]) <= MOST


def test_documents_are_counted_apart_and_in_room_that_grows() -> None:
    settings = TableSettings(3, 8 << 20)
    texts = [text_of(seed, 700, 5000) for seed in range(40)]
    small = Table(TableSettings(3, SMALLEST))
    growing = Table(settings, small.cells)
    plain = PlainTable(3)
    for text in texts:
        plain.learn(text.tolist())
    ends = np.cumsum([0, *map(len, texts)])
    flat = np.concatenate(texts)
    for i in range(40):
        growing.learn_documents(flat[ends[i] : ends[i + 1]], np.array([0, 700]))
    assert growing.bytes > 20 * SMALLEST and growing.bytes <= settings.memory
    found = lists_of(growing.snapshot())
    assert len(plain.lists) - len(found) <= growing.evicted <= 0.01 * len(plain.lists)
    assert sum(plain.lists[context] == entries for context, entries in found.items()) >= 0.99 * len(found)


def test_the_bound_holds_and_frequent_contexts_outlive_what_is_seen_once() -> None:
    table = Table(TableSettings(3, SMALLEST * 8))
    chorus = np.arange(10)
    for seed in range(300):
        table.learn(np.concatenate([chorus, np.random.default_rng(seed).integers(10, 1 << 20, 30)]))
    assert table.bytes <= SMALLEST * 8 + 200 and table.evicted > 1000
    found = lists_of(table.snapshot())
    assert all(found[(i, i + 1)][0][0] == i + 2 for i in range(8))
    require_sound(table.cells)


def require_sound(cells: Cells) -> None:
    """Every list lies where its key leads, in order, in a block that no other list has."""
    taken: set[int] = set()
    for slot in np.flatnonzero(cells.keys).tolist():
        assert find(cells, cells.keys[slot]) == slot
        entries = entries_of(cells, slot)
        counts = entries >> np.uint32(20)
        assert len(entries) and np.all(counts > 0) and np.all(np.diff(counts.astype(int)) <= 0)
        assert len(set((entries & np.uint32(0xFFFFF)).tolist())) == len(entries)
        if cells.kinds[slot]:
            words = set(range(int(cells.values[slot]), int(cells.values[slot]) + (1 << int(cells.kinds[slot]))))
            assert not taken & words
            taken |= words
    assert len(taken) == cells.state[USED] and np.count_nonzero(cells.keys) == cells.state[CONTEXTS]


def test_counts_fade_by_the_half_life() -> None:
    table = Table(TableSettings(2, 1 << 20, half_life=2000))
    table.learn(np.array([1, 2] * 400))
    table.learn(text_of(1, 8000, 30) + 10)
    found = lists_of(table.snapshot())
    assert (1,) not in found or found[(1,)][0][1] < 40
    require_sound(table.cells)


def test_a_snapshot_holds_whole_lists_while_another_thread_learns() -> None:
    table = Table(TableSettings(3, 1 << 20))
    texts = [text_of(seed, 3000, 400) for seed in range(30)]
    finished = threading.Event()

    def learn() -> None:
        for text in texts:
            table.learn(text)
        finished.set()

    thread = threading.Thread(target=learn)
    thread.start()
    snapshots = [table.snapshot()]
    while not finished.is_set():
        snapshots.append(table.snapshot())
    thread.join()
    for lists in (*snapshots[:6], table.snapshot()):
        copy = table_from(lists, TableSettings(3, 2 << 20), 0)
        assert int(lists.lengths.sum(dtype=np.int64)) == len(lists.entries)
        assert np.all(lists.entries >> np.uint32(20) > 0)
        require_sound(copy.cells)


def test_ten_million_tri_grams_would_fit_in_200_megabytes() -> None:
    """At a hundredth of the size: 26 bytes a context, shared by its tri-grams."""
    rng = np.random.default_rng(0)
    text = (rng.zipf(1.25, 160_000).clip(max=3000) - 1 + rng.integers(0, 3, 160_000)).astype(np.int64)
    table = Table(TableSettings(3, 64 << 20))
    table.learn(text)
    lists = table.snapshot()
    longest = (lists.keys >> KEY_BITS > 0) & (lists.keys != NO_TOKENS)
    assert bytes_for(lists) <= 20 * int(lists.lengths[longest].sum(dtype=np.int64))


@pytest.mark.parametrize(
    ("settings", "names"), [({"order": 5}, "order"), ({"memory": 10}, "memory"), ({"half_life": -1}, "half_life")]
)
def test_settings_out_of_range_are_named(settings: dict[str, int], names: str) -> None:
    with pytest.raises(BadTable, match=names):
        TableSettings(**settings)


def test_a_token_beyond_the_range_is_refused() -> None:
    with pytest.raises(BadTable, match="1048576"):
        Table().learn_documents(np.array([1, 1 << 20]), np.array([0, 2]))
