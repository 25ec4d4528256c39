"""The replay store over both databases: keeping, reading, asking, exporting."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage import records
from storage.errors import BadInput, SegmentDamaged, StoreError, StoreWriteFailed, UnknownRequest
from storage.files import files
from storage.files.places import GRACE_SECONDS, LocalFolder
from storage.records import Route
from storage.replay import segments
from storage.replay.purge import take_orphan
from storage.store import Store
from tests.storage.conftest import Clock
from tests.storage.make import add_root, assert_same, at_once, samples, with_hidden
from tests.storage.places import GARBAGE, files_below, segments_of

PLACED = True  # see conftest.py


def test_what_is_added_is_read_in_the_order_asked(store: Store) -> None:
    batch = [samples(number) for number in range(6)]
    store.samples.add(batch[:4])
    store.samples.add(batch[4:])
    read = store.samples.read(["r5", "r0", "unknown", "r3"])
    assert [each.request_id for each in read] == ["r5", "r0", "r3"]
    for each, number in zip(read, (5, 0, 3), strict=True):
        assert_same(each, batch[number])


def test_a_batch_may_be_added_again(store: Store) -> None:
    first = store.samples.add([samples(1), samples(2)])
    assert store.samples.add([samples(1), samples(2)]) == first
    store.samples.add([samples(2), samples(3), samples(3)])
    assert sorted(store.samples.recent(limit=9)) == ["r1", "r2", "r3"]
    assert len(segments_of(store).names()) == 2


def test_the_same_request_from_two_threads_is_kept_once(store: Store) -> None:
    added = at_once(*[partial(store.samples.add, [samples(1, m=200)])] * 4)
    assert all(isinstance(each, str | StoreError) for each in added), "the slower ones may be refused"
    assert any(isinstance(each, str) for each in added)
    assert store.samples.recent(limit=9) == ["r1"]
    assert len(segments_of(store).names()) == 1, "the file of the loser was taken back"


def test_an_empty_batch_is_refused(store: Store) -> None:
    with pytest.raises(BadInput):
        store.samples.add([])


def test_bad_shapes_leave_nothing(store: Store) -> None:
    with pytest.raises(BadInput):
        store.samples.add([samples(1), samples(2, outside=np.zeros(99, np.float32))])
    assert store.samples.recent(limit=9) == []
    assert segments_of(store).names() == []


def test_recent_is_newest_first_and_filters(keep_all: Store) -> None:
    keep_all.routes.add(Route("sql", "default"))
    made = [samples(number, route="sql" if number % 2 else "default") for number in range(6)]
    keep_all.samples.add(made)
    assert keep_all.samples.recent("default", limit=3) == ["r5", "r4", "r3"]
    assert keep_all.samples.recent(routes=["sql"], limit=9) == ["r5", "r3", "r1"]
    assert keep_all.samples.recent(before=made[2].created_at + 0.5, limit=9)[0] == "r2"
    assert keep_all.samples.recent("no such draft", limit=9) == []
    assert keep_all.samples.recent(holdout=True, limit=9) == []


def test_held_out_requests_do_not_wait(store: Store) -> None:
    store.samples.add([samples(number) for number in range(60)])
    held_out = store.samples.recent(holdout=True, limit=60)
    assert 0 < len(held_out) < 30
    assert store.samples.waiting("default").requests == 60 - len(held_out)
    assert not set(held_out) & set(store.samples.recent(holdout=False, limit=60))


def test_waiting_says_how_many_and_how_long(keep_all: Store, clock: Clock) -> None:
    assert keep_all.samples.waiting("default").oldest_age_seconds is None
    keep_all.samples.add([samples(number, created_at=clock.seconds - 10 + number) for number in range(3)])
    waiting = keep_all.samples.waiting("default")
    assert (waiting.requests, waiting.oldest_age_seconds) == (3, 10.0)


def test_a_route_of_another_draft_does_not_wait_for_this_one(keep_all: Store, tmp_path: Path) -> None:
    add_root(keep_all, tmp_path / "sql", "sql")
    keep_all.routes.add(Route("sql", "sql"))
    keep_all.samples.add([samples(1), samples(2, route="sql"), samples(3, route="sql")])
    assert (keep_all.samples.waiting("default").requests, keep_all.samples.waiting("sql").requests) == (1, 2)


def test_stats_add_up(store: Store) -> None:
    store.samples.add([samples(number, m=number) for number in range(8)])
    store.samples.add([samples(number, m=2, route="sql") for number in range(8, 12)])
    default, sql = store.samples.stats()
    assert (default.route, default.requests, default.positions, default.segments) == ("default", 8, 28, 1)
    assert (sql.route, sql.requests, sql.positions, sql.segments) == ("sql", 4, 8, 1)
    assert default.waiting + default.holdout == 8
    assert default.oldest < default.newest < sql.oldest
    assert default.bytes + sql.bytes == segments_of(store).sizes()


def test_stats_tell_the_bytes_of_hidden_states_and_an_export_takes_them_along(store: Store, tmp_path: Path) -> None:
    store.samples.add([samples(0), with_hidden(1, m=100, width=512)])
    store.samples.add([samples(2, route="sql")])
    default, sql = store.samples.stats()
    assert sql.hidden_bytes == 0 < default.hidden_bytes < default.bytes
    one = len(segments.encode([with_hidden(1, m=100, width=512)])) - len(segments.encode([samples(1, m=100)]))
    assert default.hidden_bytes == pytest.approx(one, rel=0.1)
    (read,) = store.samples.read(["r1"])
    assert_same(read, with_hidden(1, m=100, width=512, created_at=read.created_at))
    store.samples.export(tmp_path / "all.parquet")
    kept = {each.request_id: each.hidden_states for each in segments.decode(tmp_path / "all.parquet")}
    assert [kept[name] is not None for name in ("r0", "r1", "r2")] == [False, True, False]
    store.samples.export(tmp_path / "sql.parquet", routes=["sql"])
    assert segments.decode(tmp_path / "sql.parquet")[0].hidden_states is None


def test_an_import_brings_hidden_states_and_a_purge_takes_them_away(store: Store, tmp_path: Path) -> None:
    store.samples.add([with_hidden(number, m=50, width=512) for number in (1, 2)])
    path = store.samples.export(tmp_path / "all.parquet").path
    store.samples.purge(request_id="r1")
    (left,) = store.samples.stats()
    assert store.samples.read(["r1", "r2"])[0].hidden_states is not None
    store.samples.purge(everything=True)
    assert store.samples.import_file(path).requests == 2
    (back,) = store.samples.stats()
    assert back.hidden_bytes == pytest.approx(2 * left.hidden_bytes, rel=0.2)


def test_the_export_is_one_file_in_the_same_format(store: Store, tmp_path: Path) -> None:
    store.samples.add([samples(number, tenant=f"t{number % 2}") for number in range(6)])
    store.samples.add([samples(number, k=7) for number in range(6, 9)])
    exported = store.samples.export(tmp_path / "all.parquet")
    assert (exported.requests, exported.positions) == (9, 27)
    for number, read in enumerate(segments.decode(tmp_path / "all.parquet")):
        assert_same(read, samples(number, tenant=read.tenant, created_at=read.created_at, k=7 if number > 5 else 4))
    some = store.samples.export(tmp_path / "some.parquet", tenant="t1")
    assert [each.request_id for each in segments.decode(some.path)] == ["r1", "r3", "r5"]
    assert store.samples.export(tmp_path / "none.parquet", routes=["none"]).requests == 0
    assert segments.decode(tmp_path / "none.parquet") == []


def test_an_export_does_not_overwrite_unasked(store: Store, tmp_path: Path) -> None:
    (tmp_path / "all.parquet").write_text("mine")
    with pytest.raises(BadInput, match="exists"):
        store.samples.export(tmp_path / "all.parquet")
    assert (tmp_path / "all.parquet").read_text() == "mine"
    assert store.samples.export(tmp_path / "all.parquet", overwrite=True).requests == 0
    assert files_below(tmp_path) == [name for name in files_below(tmp_path) if not name.endswith(".aside")]


def test_an_export_clears_what_a_killed_one_left(store: Store, tmp_path: Path) -> None:
    store.samples.add([samples(1)])
    (tmp_path / ".all.parquet.aside").write_bytes(b"half")
    assert store.samples.export(tmp_path / "all.parquet").requests == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.parquet"]
    with files.TemporaryPath(tmp_path, "more.parquet"), pytest.raises(StoreWriteFailed, match="File exists"):
        store.samples.export(tmp_path / "more.parquet")


def test_damaged_and_missing_segments_say_so(store: Store) -> None:
    segment = store.samples.add([samples(1)])
    (name,) = segments_of(store).names()
    segments_of(store).write(name, segments_of(store).read(name)[:-20])
    with pytest.raises(SegmentDamaged, match=segment):
        store.samples.read(["r1"])
    segments_of(store).remove(name)
    with pytest.raises(SegmentDamaged, match="missing"):
        store.samples.read(["r1"])


@pytest.mark.local
def test_more_ids_than_a_statement_takes(store: Store) -> None:
    store.samples.add([samples(1)])
    ids = [f"x{number}" for number in range(70_000)] + ["r1"]
    assert [each.request_id for each in store.samples.read(ids)] == ["r1"]


def test_a_reader_follows_a_purge(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The segment is rewritten after the reader looked it up and before it opened the file."""
    store.samples.add([samples(1), samples(2)])
    look_up = store.samples._places

    def look_up_then_purge(ids: Sequence[str]) -> object:
        places = look_up(ids)
        with suppress(UnknownRequest):  # the second time
            store.samples.purge(request_id="r1")
        return places

    monkeypatch.setattr(store.samples, "_places", look_up_then_purge)
    assert [each.request_id for each in store.samples.read(["r1", "r2"])] == ["r2"]


@pytest.mark.local
def test_a_sweep_leaves_live_writers_and_other_files_alone(store: Store) -> None:
    store.samples.add([samples(1)])
    (segment,) = store.samples.folder.rglob("*.parquet")
    orphan = segment.with_name("0" * 32 + ".parquet")
    orphan.write_bytes(b"orphan")
    unfinished = segment.with_name("." + "1" * 32 + ".parquet.aside")
    unfinished.write_bytes(b"half")
    (segment.parent / "notes.txt").write_text("mine")
    swept = store.samples.sweep()
    assert {each.path for each in swept} == {orphan, unfinished}
    assert {path.name for path in segment.parent.iterdir()} == {segment.name, "notes.txt"}
    assert store.samples.sweep() == []


@pytest.mark.local
def test_a_sweep_gives_way_to_an_owner_that_was_faster(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is opened by the sweep, then renamed and let go of by its owner, then locked by the sweep."""
    store.samples.add([samples(1)])
    (segment,) = store.samples.folder.rglob("*.parquet")
    unfinished = segment.with_name("." + "1" * 32 + ".parquet.aside")
    unfinished.write_bytes(b"half")
    lock = files._lock_at_once

    def overtaken(handle: int) -> bool:
        if unfinished.exists() and os.path.samestat(os.fstat(handle), unfinished.stat()):
            shutil.move(unfinished, tmp_path / "finished")
        return lock(handle)

    monkeypatch.setattr(files, "_lock_at_once", overtaken)
    assert store.samples.sweep() == []


def test_a_sweep_between_rename_and_index_takes_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer holds its file until the index is committed."""
    index = store.samples._index
    swept = []

    def sweep_first(new: object, batch: object) -> None:
        swept.extend(store.samples.sweep())
        index(new, batch)

    monkeypatch.setattr(store.samples, "_index", sweep_first)
    store.samples.add([samples(1)])
    assert swept == []
    assert [each.request_id for each in store.samples.read(["r1"])] == ["r1"]


def test_a_sweep_takes_what_nothing_refers_to_once_it_is_old(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder at once: a lock says that nobody is at it."""
    store.samples.add([samples(1)])
    kept = segments_of(store).names()
    segments_of(store).write(GARBAGE, b"left by a crash")
    segments_of(store).write("notes.txt", b"mine")
    if not isinstance(store.samples.files.place, LocalFolder):
        assert store.samples.sweep() == []
        later = time.time() + 2 * GRACE_SECONDS
        monkeypatch.setattr(records, "now", lambda: later)
    (swept,) = store.samples.sweep()
    assert (str(swept.path), swept.bytes) == (str(store.samples.files.place.show(GARBAGE)), 15)
    assert segments_of(store).names() == sorted([*kept, "notes.txt"])
    assert len(store.samples.read(["r1"])) == 1


def test_a_writer_that_a_sweep_overtook_keeps_nothing_and_may_try_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if its machine had slept for hours between the put and the index: the index decides, not the clock."""
    index, later = store.samples._index, time.time() + 2 * GRACE_SECONDS

    def sleep(new: Any, batch: Any) -> None:
        monkeypatch.setattr(records, "now", lambda: later)
        store.samples.sweep()
        index(new, batch)

    monkeypatch.setattr(store.samples, "_index", sleep)
    if isinstance(store.samples.files.place, LocalFolder):
        store.samples.add([samples(1)])  # its lock held the sweep off
    else:
        with pytest.raises(StoreError, match="swept before it was entered"):
            store.samples.add([samples(1)])
        assert segments_of(store).names() == [] and store.samples.recent(limit=9) == []
        monkeypatch.setattr(store.samples, "_index", index)
        store.samples.add([samples(1)])
    assert len(store.samples.read(["r1"])) == 1


def test_a_sweep_that_meets_a_writer_in_its_transaction_gives_way(store: Store) -> None:
    """What the writer has entered and not yet committed is no orphan. On SQLite only one of them writes at a time."""
    swept: list[object] = []
    require = store.samples.files.place.require

    def sweep_beside(path: str) -> None:
        thread = threading.Thread(target=lambda: swept.append(take_orphan(store.db, store.samples.files.place, path)))
        thread.start()
        require(path)
        threads.append(thread)

    threads: list[threading.Thread] = []
    if isinstance(store.samples.files.place, LocalFolder):
        return
    store.samples.files.place.require = sweep_beside
    store.samples.add([samples(1)])
    threads[0].join()
    assert swept == [False]
    assert len(store.samples.read(["r1"])) == 1
