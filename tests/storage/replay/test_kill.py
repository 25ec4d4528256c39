"""A process is killed at every step of keeping, purging, staging and publishing; the store is whole afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.errors import WeightsDamaged
from storage.records import RunState, VersionState
from storage.settings import Settings
from storage.store import Store, open_store
from tests.storage.child import batch, run_child
from tests.storage.make import add_root, assert_same, claim, samples
from tests.storage.places import files_below, segments_of
from tests.storage.replay.test_purge import tokens_on_disk

KILLED = -9


def number_of(request_id: str) -> int:
    return int(request_id[1:])


def assert_whole(store: Store) -> list[str]:
    """Sweep; then files and index agree, every request can be read, and nothing is left to sweep. The requests."""
    store.sweep()
    ids = sorted(store.samples.recent(limit=999), key=number_of)
    read = store.samples.read(ids)
    assert [each.request_id for each in read] == ids
    for each in read:
        assert_same(each, samples(number_of(each.request_id), created_at=each.created_at))
    names = {each.rsplit("/", 1)[1] for each in files_below(store.samples.folder)}
    assert names == {f"{segment}.parquet" for segment in store.samples._segments_of(ids).values()}
    assert tokens_on_disk(segments_of(store)) == {int(token) for each in read for token in each.tokens}
    assert store.sweep() == []
    return ids


def ids_of(*numbers: int) -> list[str]:
    return [each.request_id for number in numbers for each in batch(number)]


ADD_POINTS = {
    "half written": False,
    "written, not synced": False,
    "synced, not renamed": False,
    "renamed, folder not synced": False,
    "renamed, not indexed": False,
    "before commit": False,
    "after commit": True,
}


@pytest.mark.parametrize("point", ADD_POINTS)
def test_killed_while_adding(settings: Settings, point: str) -> None:
    status, acknowledged = run_child(settings, "add", point)
    assert (status, acknowledged) == (KILLED, ["0", "1"])
    with open_store(settings) as store:
        assert assert_whole(store) == (ids_of(0, 1, 2) if ADD_POINTS[point] else ids_of(0, 1))
        for number in range(3):  # what was not acknowledged is sent again, and what was does no harm
            store.samples.add(batch(number))
        assert assert_whole(store) == ids_of(0, 1, 2)


PURGE_POINTS = {
    "half written": False,
    "synced, not renamed": False,
    "renamed, not indexed": False,
    "committed, old file there": True,
}


@pytest.mark.parametrize("point", PURGE_POINTS)
def test_killed_while_purging(settings: Settings, point: str) -> None:
    with open_store(settings) as store:
        store.samples.add(batch(0))
        (segment,) = files_below(store.samples.folder)
        assert run_child(settings, "purge", point)[0] == KILLED
        left = [each for each in ids_of(0) if not (PURGE_POINTS[point] and each == "r1")]
        assert sorted(store.samples.recent(limit=9)) == left
        assert len(store.samples.read(left)) == len(left), "readable before any sweep"
        assert (segment in files_below(store.samples.folder)) is True
        assert assert_whole(store) == left
        if not PURGE_POINTS[point]:
            store.samples.purge(request_id="r1")
        assert assert_whole(store) == ["r0", "r2", "r3"]


TRAIN_POINTS = [
    "stage: half sealed",
    "stage: sealed, not entered",
    "stage: synced, not renamed",
    "stage: renamed, not indexed",
    "stage: before commit",
    "publish: marked, not committed",
    "publish: before commit",
]


@pytest.mark.parametrize("point", TRAIN_POINTS)
def test_killed_while_training(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    """No weights are half-visible, the draft still serves number 0, and the claim returns when the lease ends."""
    with open_store(settings) as store:
        root = add_root(store, tmp_path / "model")
        store.samples.add(batch(0))
        assert run_child(settings, "train", point)[0] == KILLED
        store.sweep()
        assert store.versions.current("default").id == root
        home = store.versions.weights_folder / "default"
        assert {path.name for path in home.iterdir()} == {version.id for version in store.versions.list()}
        for version in store.versions.list():
            store.versions.verify(version)
        candidates = [version.state for version in store.versions.list()[1:]]
        assert candidates == ([] if point.startswith("stage") else [VersionState.CANDIDATE])
        (dead,) = store.runs.list()
        assert (dead.state, dead.holder) == (RunState.CLAIMED, "child")
        monkeypatch.setattr("storage.records.now", lambda: dead.lease_until + 1)
        run = claim(store)
        assert run is not None and run.request_ids == dead.request_ids
        assert store.runs.get(dead.id).state is RunState.LOST


def test_killed_after_publishing(settings: Settings, tmp_path: Path) -> None:
    with open_store(settings) as store:
        add_root(store, tmp_path / "model")
        store.samples.add(batch(0))
        assert run_child(settings, "train", "publish: after commit")[0] == KILLED
        current = store.versions.current("default")
        assert (current.number, current.state) == (1, VersionState.READY)
        store.versions.verify(current)
        (run,) = store.runs.list()
        assert (run.state, run.version) == (RunState.PUBLISHED, current.id)
        (store.versions.folder(current) / "READY").unlink()
        with pytest.raises(WeightsDamaged):
            store.versions.verify(current)
