"""Weights end by the policy, and what a draft rests on never does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.errors import WeightsDamaged, WrongState
from storage.records import DraftVersion, RunState, VersionState
from storage.settings import VersionLimits
from storage.store import Store
from storage.versions.weights import MASTER
from tests.storage.conftest import Clock
from tests.storage.make import add_root, claim, samples, write_weights
from tests.storage.places import weights_of

PLACED = True  # see conftest.py
SERVED = 2


@pytest.fixture
def store_of_many(keep_all: Store, tmp_path: Path) -> Iterator[Store]:
    """Numbers 0 to 7 of a line in which each was published after the one before, and a rejected one after each; the odd
    ones served."""
    version = keep_all.versions.get(add_root(keep_all, tmp_path / "model"))
    for number in range(1, 8):
        version = keep_all.versions.promote(stage(keep_all, version, float(number)).id)
        if number % 2:
            keep_all.versions.mark_serving(version.id, "server")
        keep_all.versions.reject(stage(keep_all, version, 0.5).id, {})
    keep_all.versions.end_serving("server")
    yield keep_all


def stage(
    store: Store, parent: DraftVersion, value: float, *, master: bool = False, run: str | None = None
) -> DraftVersion:
    def write(folder: Path) -> None:
        write_weights(folder, value)
        if master:
            (folder / MASTER).write_bytes((folder / "model.safetensors").read_bytes())

    return store.versions.stage("default", parent.id, "full", write, run_id=run)


def folders(store: Store) -> set[str]:
    """Where there are weights."""
    return {name.rpartition("/")[0] for name in weights_of(store).names() if name.endswith("model.safetensors")}


def left(store: Store) -> set[str]:
    return {version.id for version in store.versions.list("default", deleted=False)}


def plain_left(store: Store, served: int) -> set[str]:
    """What is to stay, the slow way: by walking from every version to what serves."""
    versions = store.versions.list("default")
    current = store.versions.current("default")
    line = store.versions.lineage(current.id)
    before = [version for version in line[1:] if version.served_at is not None][:served]
    reach = line.index(before[-1]) if before else 0
    return {v.id for v in line[: reach + 1]} | {versions[0].id, versions[-1].id, line[1].id}


def test_what_serves_its_line_and_number_0_stay(store_of_many: Store) -> None:
    for served in (5, 3, SERVED, 1):
        wanted = plain_left(store_of_many, served)
        dry = store_of_many.version_keeper.retain(VersionLimits(served=served), dry=True)
        assert left(store_of_many) - set(dry.versions) == wanted
        done = store_of_many.version_keeper.retain(VersionLimits(served=served))
        assert done == dry and left(store_of_many) == wanted and done.by_rule.get("served", 0) == len(done.versions)
        assert folders(store_of_many) == {store_of_many.versions.get(one).path for one in wanted}
    assert store_of_many.version_keeper.retain(VersionLimits(served=1)).versions == ()
    assert store_of_many.version_keeper.retain(VersionLimits(served="all")).versions == ()


def test_what_is_named_held_served_or_tried_stays(store_of_many: Store) -> None:
    rejected = [v for v in store_of_many.versions.list("default") if v.state is VersionState.REJECTED]
    named, lagging, spare = rejected[0], rejected[1], rejected[2]
    store_of_many.decisions.name(named.id, "good")
    store_of_many.versions.mark_serving(lagging.id, "a server that lags behind")
    old = store_of_many.versions.list("default")[3]
    store_of_many.decisions.pin(old.id)
    store_of_many.version_keeper.retain(VersionLimits(served=1))
    stay = left(store_of_many)
    assert {named.id, lagging.id, old.id} < stay and spare.id not in stay
    for version in (named, lagging, old):
        store_of_many.versions.verify(store_of_many.versions.get(version.id))


def test_what_is_too_old_or_too_large_ends(store_of_many: Store, clock: Clock) -> None:
    every = store_of_many.versions.list("default")
    size = sum(version.bytes or 0 for version in every)
    assert all(version.bytes for version in every)
    few = store_of_many.version_keeper.retain(VersionLimits(served="all", bytes=size - 2 * (every[1].bytes or 0)))
    assert few.versions == (every[1].id, every[2].id) and few.by_rule == {"bytes": 2}
    clock.seconds += 100
    new = store_of_many.versions.promote(stage(store_of_many, store_of_many.versions.current("default"), 9.0).id)
    done = store_of_many.version_keeper.retain(VersionLimits(served="all", age_seconds=50))
    assert set(done.by_rule) == {"age"} and left(store_of_many) == {every[0].id, every[-2].id, new.id}


def test_a_version_without_weights_is_refused_and_the_rest_of_it_stays_known(store_of_many: Store) -> None:
    store_of_many.version_keeper.retain(VersionLimits(served=1))
    gone = next(v for v in store_of_many.versions.list("default") if v.deleted_at is not None)
    assert (
        gone.parent and gone.state is VersionState.RETIRED and store_of_many.versions.lineage(gone.id)[-1].number == 0
    )
    for attempt in (store_of_many.decisions.pin, store_of_many.decisions.promote):
        with pytest.raises(WeightsDamaged, match="they were deleted"):
            attempt(gone.id)
    for look in (store_of_many.versions.verify, store_of_many.versions.folder, store_of_many.version_keeper.delete):
        with pytest.raises(WeightsDamaged, match="they were deleted"):
            look(gone)
    back = store_of_many.versions.rollback("default", "fell")
    assert back.deleted_at is None, "going back passes by what has no weights"


def test_deleting_by_hand_says_what_rests_on_it(store_of_many: Store) -> None:
    every = store_of_many.versions.list("default")
    current = store_of_many.versions.current("default")
    for version, why in ((every[0], "number 0"), (current, "the current version"), (every[-1], "the newest")):
        with pytest.raises(WrongState, match=why):
            store_of_many.version_keeper.delete(version)
    store_of_many.version_keeper.delete(every[2])
    line = store_of_many.trail.history(every[2].id)[0]
    assert (line.action, line.after) == ("drafts delete", {"bytes": every[2].bytes})
    assert every[2].id not in left(store_of_many)


def test_float32_weights_stay_beside_the_current_and_the_newest_version_alone(keep_all: Store, tmp_path: Path) -> None:
    root = keep_all.versions.get(add_root(keep_all, tmp_path / "model"))
    first = keep_all.versions.promote(stage(keep_all, root, 1.0, master=True).id)
    second = keep_all.versions.promote(stage(keep_all, first, 2.0, master=True).id)
    third = keep_all.versions.reject(stage(keep_all, second, 3.0, master=True).id, {})
    keep_all.version_keeper.retain(VersionLimits())
    have = [version.id for version in keep_all.versions.list("default") if version.has_master]
    assert have == [second.id, third.id]
    for version in keep_all.versions.list("default"):
        keep_all.versions.verify(version)  # they are in no digest
        master = keep_all.versions.master(version)
        assert (master is not None and master.read_bytes() != b"") is version.has_master


@pytest.mark.parametrize("left_by", [RunState.FAILED, RunState.LOST])
def test_what_was_judged_last_stays_though_a_later_run_was_stopped(
    keep_all: Store, tmp_path: Path, left_by: RunState
) -> None:
    """The next run goes on from it."""
    root = keep_all.versions.get(add_root(keep_all, tmp_path / "model"))
    keep_all.samples.add([samples(number, m=1) for number in range(2)])
    made = []
    for value, state in ((1.0, RunState.REJECTED), (2.0, left_by)):
        run = claim(keep_all, max_requests=1)
        made.append(stage(keep_all, root, value, master=True, run=run.id))
        keep_all.versions.reject(made[-1].id, {"worse": False})
        keep_all.runs.finish(run, state, made[-1].id)
    keep_all.version_keeper.retain(VersionLimits(served=1))
    assert {root.id, made[0].id} <= left(keep_all) and keep_all.versions.get(made[0].id).has_master


@pytest.mark.local
def test_what_a_killed_deletion_left_is_swept(store_of_many: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as killed:
        killed.setattr(store_of_many.versions.files, "remove", lambda path: None)
        done = store_of_many.version_keeper.retain(VersionLimits(served=1))
    swept = store_of_many.versions.sweep()
    assert len(swept) == len(done.versions) > 3
    assert folders(store_of_many) == {version.path for version in store_of_many.versions.list(deleted=False)}


def test_a_run_s_parent_stays_while_it_trains(store_of_many: Store) -> None:
    store_of_many.samples.add([samples(1, m=1)])
    run = claim(store_of_many)
    parent = store_of_many.versions.get(run.parent)
    for value in (20.0, 21.0, 22.0):
        new = store_of_many.versions.promote(stage(store_of_many, store_of_many.versions.current("default"), value).id)
        store_of_many.versions.mark_serving(new.id, "server")
    store_of_many.version_keeper.retain(VersionLimits(served=1))
    assert parent.id in left(store_of_many)
    store_of_many.runs.finish(run, RunState.FAILED)
    store_of_many.version_keeper.retain(VersionLimits(served=1))
    assert parent.id not in left(store_of_many)
