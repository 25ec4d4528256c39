"""A cache says what a plain one says, however its rows lie, and costs what they hold."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from osd.models.decoder import Decoder
from osd.models.kv_blocks import BLOCK, DenseRows, LazyTensor, PagedRows, blocks_for
from osd.models.kv_cache import RaggedCache
from storage.errors import BadSetting
from tests.support.caches import LAYOUTS, laid_out
from tests.support.models import random_pair, some
from tests.support.plain_cache import PlainCache

CPU = torch.device("cpu")
ROWS, LENGTH, HEADS, WIDTH = 5, 150, 2, 4
layouts = pytest.mark.parametrize("layout", LAYOUTS)


class Beside:
    """A cache of one layer, and the plain one."""

    def __init__(self, seed: int) -> None:
        self.cache = RaggedCache(1, ROWS, LENGTH, CPU, torch.float32, LENGTH)
        self.plain = PlainCache(ROWS)
        self.random = random.Random(seed)

    def length(self, row: int) -> int:
        return len(self.plain.rows[row])

    def write(self, row: int) -> None:
        """Some tokens, from the row's end or a little before it, as after a refusal."""
        start = self.random.randrange(max(0, self.length(row) - 5), self.length(row) + 1)
        count = min(self.random.choice([1, 4, 40]), LENGTH - start)
        if count:
            keys, values = torch.randn(2, count, HEADS, WIDTH)
            self.cache.extend(row, [start + count])
            self.cache.aim(row, [start], count, [count])
            self.cache.ragged[0].write(keys, values)
            self.plain.write(row, start, list(zip(keys, values, strict=True)))

    def close_up(self, row: int) -> None:
        """A tree of six nodes at the row's end, of which a path stays."""
        start, path = self.length(row), sorted(self.random.sample(range(6), self.random.randrange(1, 5)))
        if start + 6 <= LENGTH:
            keys, values = torch.randn(2, 6, HEADS, WIDTH)
            self.cache.extend(row, [start + 6])
            self.cache.aim(row, [start], 6, [6])
            self.cache.ragged[0].write(keys, values)
            self.plain.write(row, start, list(zip(keys, values, strict=True)))
            self.cache.close_up({row: start}, [(row, node, place) for place, node in enumerate(path)])  # type: ignore[arg-type]
            self.plain.close_up(row, start, path)

    def move(self, row: int, other: int) -> None:
        if row != other:
            self.cache.move_row(row, other, self.length(row))
            self.plain.copy(row, other)
            self.plain.release(row)

    def copy(self, row: int, other: int) -> None:
        if row != other:
            self.cache.copy_row(row, other, self.length(row))
            self.plain.copy(row, other)

    def swap(self, row: int, other: int) -> None:
        self.cache.swap_rows(row, other, max(self.length(row), self.length(other)))
        self.plain.swap(row, other)

    def release(self, row: int) -> None:
        self.cache.release_row(row)
        self.plain.release(row)

    def same(self, first: int, last: int) -> None:
        """What passes over neighbouring rows read is what the plain one holds."""
        lengths = [self.length(row) for row in range(first, last)]
        if not self.cache.kept or not max(lengths):
            return
        self.cache.aim(first, [max(0, n - 1) for n in lengths], 1, [1] * len(lengths))
        read = self.cache.ragged[0].window(slice(0, last - first), max(lengths))
        for row in range(first, last):
            for ours, theirs in zip(read, zip(*self.plain.rows[row], strict=True), strict=False):
                assert torch.equal(ours[row - first, :, : self.length(row)], torch.stack(theirs, dim=1))
            assert self.cache.layout.held[row] >= blocks_for(self.length(row))


@layouts
@pytest.mark.parametrize("seed", range(4))
def test_rows_hold_what_rows_of_a_plain_cache_hold(layout: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    laid_out(monkeypatch, layout)
    torch.manual_seed(seed)
    both = Beside(seed)
    assert isinstance(both.cache.layout, PagedRows if layout == "paged" else DenseRows)
    actions: list[Any] = [both.write] * 6 + [both.close_up, both.release]
    pairs: list[Any] = [both.move, both.copy, both.swap]
    for step in range(120):
        if step % 4:
            both.random.choice(actions)(both.random.randrange(ROWS))
        elif both.cache.kept:
            both.random.choice(pairs)(both.random.randrange(ROWS), both.random.randrange(ROWS))
        if step == 60:
            both.cache.grow(ROWS + 1)
        first = both.random.randrange(ROWS)
        both.same(first, both.random.randrange(first, ROWS) + 1)


@layouts
def test_a_row_holds_blocks_for_what_it_has(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    laid_out(monkeypatch, layout)
    cache = RaggedCache(1, ROWS, LENGTH, CPU, torch.float32, LENGTH)
    cache.extend(1, [1, BLOCK + 1])
    assert cache.layout.held == [0, 1, 2, 0, 0] and cache.layout.used == 3
    cache.extend(2, [3])
    assert cache.layout.used == 3, "none is given back as long as the row is there"
    cache.move_row(2, 0, BLOCK)
    assert cache.layout.held == [2, 1, 0, 0, 0]
    cache.release_row(0)
    assert cache.layout.held == [0, 1, 0, 0, 0]


def test_beyond_the_bound_there_are_no_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    laid_out(monkeypatch, "paged")
    cache = RaggedCache(1, ROWS, LENGTH, CPU, torch.float32, LENGTH)
    cache.bound(7)
    cache.extend(0, [5 * BLOCK, BLOCK, 1])
    with pytest.raises(RuntimeError, match="the cache has 7 blocks, and 8 are wanted"):
        cache.extend(3, [1])
    cache.release_row(1)
    cache.extend(3, [1])
    assert cache.layout.used == 7


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@torch.inference_mode()
def test_32_rows_of_up_to_8192_positions_cost_what_they_hold() -> None:
    """All of them would be 268 MB; 32 rows of 40 tokens are 1.3 MB, and pages that are not full."""
    cache = RaggedCache(2, 32, 8192, CPU, torch.float32, 8192)
    cache.extend(0, [40] * 32)
    cache.aim(0, [0] * 32, 40, [40] * 32)
    before = resident()
    for layer in cache.ragged:
        layer.write(*torch.ones(2, 32 * 40, 4, 16))
    assert cache.bytes == 32 * 2 * BLOCK * 2 * 2 * 4 * 16 * 4
    assert resident() - before < 24 << 20
    cache.extend(0, [8000])
    cache.aim(0, [0], 8000, [8000])
    for layer in cache.ragged:
        layer.write(*torch.ones(2, 8000, 4, 16))
    grown = resident()
    cache.release_row(0)
    assert grown - resident() > 6 << 20, "what a long row had is the system's again"


def test_pages_that_were_given_back_are_zeros_and_others_stay() -> None:
    lazy = LazyTensor((3, 5000), torch.float32)
    assert lazy.tensor.count_nonzero() == 0
    lazy.tensor.fill_(7)
    lazy.release(100, 9900)
    flat = lazy.tensor.flatten()
    assert (flat[:100] == 7).all() and (flat[9900:] == 7).all() and (flat[2048:8192] == 0).all()
    lazy.release(100, 200)
    assert (flat[:100] == 7).all(), "less than a page"


def test_addresses_that_the_system_refuses_are_named() -> None:
    with pytest.raises(BadSetting, match=r"serve\.max_batch.*reserves no \d+ MB for keys and values"):
        LazyTensor((1 << 50,), torch.float32)


@layouts
@pytest.mark.parametrize("kind", ["llama", "gpt_neox"])
@torch.inference_mode()
def test_passes_say_the_same_however_rows_lie(layout: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = random_pair(kind)
    plain = pair.target.decoder(3, 200)
    laid_out(monkeypatch, layout)
    decoder = pair.target.decoder(3, 200)
    texts = [some(n, row)[:n].tolist() for row, n in enumerate((70, 9, 33))]
    for each in (plain, decoder):
        for row, text in enumerate(texts):
            each.prefill(row, text)
        each.swap_rows(0, 2, 70)
    said = [each.logits(some(3, 4, 1), [33, 9, 70]) for each in (plain, decoder)]
    torch.testing.assert_close(said[1], said[0], rtol=1e-4, atol=1e-4)
    logits = [each.logits(some(1, 2, 1), [9], first=1) for each in (plain, decoder)]
    torch.testing.assert_close(logits[1], logits[0], rtol=1e-4, atol=1e-4)


def test_a_bound_that_holds_no_row_is_refused() -> None:
    decoder: Decoder = random_pair("llama").target.decoder(4, 200)
    with torch.inference_mode():
        with pytest.raises(BadSetting, match=r"serve\.cache_mb.*do not hold a row of 200 positions; give 1 or more"):
            decoder.bound(1000)
        decoder.bound(1 << 20)
    assert decoder.cache.total == (1 << 20) // (BLOCK * 256) - 1
