"""Retention and compaction on a real store."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from storage.records import RunState
from storage.settings import RetentionSettings
from storage.store import Store
from tests.storage.make import add_root, assert_same, at_once, claim, samples
from tests.storage.places import segments_of

PLACED = True  # see conftest.py


def numbers(store: Store) -> list[int]:
    return sorted(int(request_id[1:]) for request_id in store.samples.recent(limit=999))


def test_limits_hold_on_the_disk(keep_all: Store) -> None:
    for begin in range(0, 60, 10):
        keep_all.samples.add([samples(number) for number in range(begin, begin + 10)])
    limit = sum(row.bytes for row in keep_all.samples.stats()) // 3
    counted = keep_all.keeper.retain(RetentionSettings(bytes=limit, requests=50), dry=True)
    assert counted.by_rule["requests"] == 10
    assert len(numbers(keep_all)) == 60, "to count is not to end"
    done = keep_all.keeper.retain(RetentionSettings(bytes=limit, requests=50))
    assert done.by_rule == counted.by_rule
    assert done.purged.requests == sum(done.by_rule.values()) == 60 - len(numbers(keep_all))
    assert numbers(keep_all) == list(range(60 - len(numbers(keep_all)), 60)), "the newest stay"
    on_disk = segments_of(keep_all).sizes()
    assert on_disk == sum(row.bytes for row in keep_all.samples.stats())
    assert on_disk < limit * 1.5, "a file that is written anew is a little larger for each request"


def test_a_claim_under_way_is_kept_and_released_once_judged(keep_all: Store, tmp_path: Path) -> None:
    add_root(keep_all, tmp_path / "model")
    keep_all.samples.add([samples(number) for number in range(6)])
    run = claim(keep_all, max_requests=4)
    hard = RetentionSettings(release=True, requests=1)
    keep_all.keeper.retain(hard)
    assert numbers(keep_all) == [0, 1, 2, 3]
    assert len(keep_all.samples.read(run.request_ids)) == 4
    keep_all.runs.finish(run, RunState.REJECTED)
    assert keep_all.keeper.retain(hard).by_rule == {"release": 4}
    assert numbers(keep_all) == []


def test_a_failed_run_releases_nothing(keep_all: Store, tmp_path: Path) -> None:
    add_root(keep_all, tmp_path / "model")
    keep_all.samples.add([samples(number) for number in range(3)])
    run = claim(keep_all)
    keep_all.runs.finish(run, RunState.FAILED)
    keep_all.keeper.retain(RetentionSettings(release=True))
    assert numbers(keep_all) == [0, 1, 2]


def test_what_is_kept_of_a_request_says_how_far_the_draft_was_off(keep_all: Store) -> None:
    near = samples(0, kinds=np.zeros(3, np.uint8), acceptance=np.ones(3, np.float16))
    far = samples(1, kinds=np.ones(3, np.uint8), acceptance=np.array([0.5, 0.25, 0.25], np.float16))
    unknown = samples(2, kinds=np.full(3, 2, np.uint8), acceptance=np.full(3, np.nan, np.float16))
    keep_all.samples.add([far, near, unknown])
    keep_all.keeper.retain(RetentionSettings(requests=1, prefer="divergent"))
    assert numbers(keep_all) == [1]


def test_small_segments_become_few_and_read_the_same(keep_all: Store, tmp_path: Path) -> None:
    add_root(keep_all, tmp_path / "model")
    everything = [samples(number) for number in range(40)]
    for begin in range(0, 40, 4):
        keep_all.samples.add(everything[begin : begin + 4])
    claim(keep_all, max_requests=7)
    done = keep_all.keeper.compact(16)
    assert (done.before, done.after) == (10, 3)
    assert len(segments_of(keep_all).names()) == 3
    for kept, written in zip(keep_all.samples.read([f"r{n}" for n in range(40)]), everything, strict=True):
        assert_same(kept, written)
    assert keep_all.samples.waiting("default").requests == 33, "claims stand"
    assert keep_all.keeper.compact(8).before == 0, "what is not small stays as it is"


def test_compaction_purges_and_readers_at_once(keep_all: Store) -> None:
    for begin in range(0, 40, 2):
        keep_all.samples.add([samples(begin), samples(begin + 1)])

    def purge() -> None:
        for number in range(0, 40, 5):
            keep_all.samples.purge(request_id=f"r{number}")

    def read() -> None:
        for _ in range(10):
            assert len(keep_all.samples.read([f"r{n}" for n in range(40) if n % 5])) == 32

    def compact() -> None:
        for _ in range(3):
            keep_all.keeper.compact(10)

    assert at_once(purge, read, compact) == [None, None, None]
    assert numbers(keep_all) == [n for n in range(40) if n % 5]
    assert len(keep_all.samples.read([f"r{n}" for n in range(40)])) == 32
