"""Random streams through everything that is compiled; after each, a table's cells are what their layout says.

`NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=somewhere/new pytest tests/osd/ngram` checks every access as well."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.trees.suffix_index import SuffixIndex
from osd.draft_tree import TokenProposal, Tree, graft
from osd.drafters.ngram.cells import CONTEXTS, NOWHERE, TOP, USED, Cells, entries_of
from osd.drafters.ngram.drafter import NgramDrafter, SearchSettings
from osd.drafters.ngram.lookup import MatchSettings, PromptLookup
from osd.drafters.ngram.table import SMALLEST, Table, TableSettings, table_from
from tests.osd.drafters.ngram.test_search import paths_of

BLOCKS = range(7)


def require_sound(cells: Cells) -> None:
    """Lists are ordered, of distinct tokens and whole; blocks, given out or free, fill the pool without overlap."""
    spans: list[tuple[int, int]] = []
    slots = np.flatnonzero(cells.keys)
    for slot in slots:
        kind = int(cells.kinds[slot])
        entries = entries_of(cells, slot)
        counts = (entries >> np.uint32(20)).astype(int)
        assert kind <= 6 and 1 <= len(entries) <= 1 << kind and counts.min() > 0
        assert (np.diff(counts) <= 0).all() and len(set((entries & np.uint32(0xFFFFF)).tolist())) == len(entries)
        if kind:
            begin = int(cells.values[slot])
            spans.append((begin, 1 << kind))
            assert not cells.pool[begin + len(entries) : begin + (1 << kind)].any()
    assert sum(size for _, size in spans) == cells.state[USED] and len(slots) == cells.state[CONTEXTS]
    for kind in BLOCKS:
        free = int(cells.free[kind])
        while free != NOWHERE:
            spans.append((free, 1 << kind))
            free = int(cells.pool[free])
    end = 0
    for begin, size in sorted(spans):
        assert begin == end
        end = begin + size
    assert end == cells.state[TOP] <= len(cells.pool)


def require_tree(proposal: TokenProposal, most: int, depth: int, vocabulary: int) -> None:
    assert len(proposal) <= most and max((len(path) for path, _ in paths_of(proposal)), default=0) <= depth
    assert len(graft(Tree(), proposal, 1 << 20, 1 << 20, vocabulary)) == len(proposal)  # no siblings alike


@st.composite
def cases(draw: Any) -> tuple[TableSettings, SearchSettings, int, int]:
    table = TableSettings(
        draw(st.sampled_from([2, 3, 4])), draw(st.sampled_from([SMALLEST, 3 * SMALLEST, 20_000, 1 << 20])),
        draw(st.sampled_from([0, 10, 500])),
    )  # fmt: skip
    maker = SearchSettings(
        searches=draw(st.sampled_from([1, 10, 300])), nodes=draw(st.sampled_from([1, 8, 200])),
        depth=draw(st.sampled_from([1, 8, 64])), breadth=draw(st.sampled_from([1, 16, 64])),
        kappa=draw(st.sampled_from([0.0, 10.0, 1e9])), weight=draw(st.sampled_from([0.0, 128.0, 1e12])),
        shortest=draw(st.integers(0, 3)), method=draw(st.sampled_from(["mcts", "greedy"])),
        own_slots=draw(st.sampled_from([64, 100, 4096])), budget_us=draw(st.sampled_from([None, 1.0, 1e4])),
    )  # fmt: skip
    return table, maker, draw(st.sampled_from([2, 70, 6144, 1 << 20])), draw(st.integers(0, 1 << 30))


@settings(max_examples=60)
@given(cases())
def test_nothing_breaks_a_table(case: tuple[TableSettings, SearchSettings, int, int]) -> None:
    said, how, vocabulary, seed = case
    rng, table = np.random.default_rng(seed), Table(said)
    maker = NgramDrafter(table, how)

    def stream(length: int) -> Any:
        wide = rng.zipf(1.3, length) - 1 if seed % 2 else rng.integers(0, vocabulary, length)
        return np.minimum(wide, vocabulary - 1).astype(np.int64)

    rows: dict[int, list[int]] = {}
    for _ in range(12):
        text, what = stream(int(rng.choice([0, 1, 3, 50, 2000]))), rng.integers(0, 5)
        if what == 0 or not rows:
            rows[maker.open(text)] = text.tolist()
            continue
        place = int(rng.choice(list(rows)))
        if what == 1:
            start = len(rows[place])
            rows[place] += text.tolist()
            before = max(0, start - 8)
            maker.learn(place, np.array(rows[place][before:], np.int64), start - before, shared=bool(seed % 3))
        elif what == 2 and len(rows) > 1:
            maker.close(place)
            del rows[place]
        elif what == 3:
            table.learn_documents(text, np.unique([0, len(text) // 3, len(text)]))
        else:
            most, depths = rng.integers(0, how.nodes + 1, len(rows)), rng.integers(1, 65, len(rows))
            tails = [text[-8:] for text in rows.values()]
            found = maker.propose(list(rows), tails, most.tolist(), depths.tolist())
            for tree, nodes, depth in zip(found, most, depths, strict=True):
                require_tree(tree, nodes, min(depth, how.depth), vocabulary)
        require_sound(table.cells)
    for place in rows:
        require_sound(maker.overlays.table(place))
    lists = table.snapshot()
    if len(lists.keys):
        again = table_from(lists, TableSettings(said.order, SMALLEST), 0)
        require_sound(again.cells)
        again.learn(stream(300))
        require_sound(again.cells)


@settings(max_examples=60)
@given(
    st.lists(st.lists(st.integers(0, 3), max_size=40), max_size=6), st.lists(st.integers(0, 3), max_size=40),
    st.integers(1, 4), st.integers(0, 12), st.integers(1, 70), st.integers(1, 12), st.integers(1, 40),
)  # fmt: skip
def test_nothing_breaks_looking_up(
    texts: list[list[int]], text: list[int], shortest: int, more: int, matches: int, length: int, nodes: int
) -> None:
    how = MatchSettings(shortest + more, shortest, matches, length, nodes)
    index = SuffixIndex([np.array(each, np.int64) for each in texts], how)
    for found in (*index.propose([np.array(text, np.int64)]), *PromptLookup(how).propose([np.array(text, np.int64)])):
        require_tree(found, nodes, length, 4)
