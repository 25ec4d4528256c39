"""The ledger of versions: entering, publishing, serving, going back; damaged weights refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from storage.errors import (
    BadInput,
    LeaseLost,
    ModelNotLoaded,
    StoreError,
    StoreWriteFailed,
    UnknownDraft,
    UnknownVersion,
    WeightsDamaged,
    WrongState,
)
from storage.records import DraftVersion, RunState, TrainingRun, VersionState
from storage.settings import Settings
from storage.store import Store, open_store
from tests.storage.make import add_root, at_once, claim, samples, write_weights
from tests.storage.places import files_below, files_of, forget_cache, weights_of

SERVED = {"READY", "config.json", "model.safetensors", "osd.json"}


PLACED = True  # see conftest.py


@pytest.fixture
def ready(keep_all: Store, tmp_path: Path) -> Store:
    """A draft with weights, and plenty that waits."""
    add_root(keep_all, tmp_path / "model")
    keep_all.samples.add([samples(number, m=1) for number in range(20)])
    return keep_all


start = partial(claim, max_requests=1)


def stage(store: Store, run: TrainingRun, value: float = 1.0) -> DraftVersion:
    return store.versions.stage(
        "default", run.parent, "full", lambda folder: write_weights(folder, value), run_id=run.id,
        provenance={"command": "test"},
    )  # fmt: skip


def publish(store: Store, value: float = 1.0) -> DraftVersion:
    """One whole run: claim, stage, publish, finish."""
    run = start(store)
    version = store.versions.publish(stage(store, run, value).id, {"gain": value}, run=run)
    store.runs.finish(run, RunState.PUBLISHED, version.id)
    return version


def states(store: Store) -> list[str]:
    return [version.state.value for version in store.versions.list("default")]


def damage(store: Store, version: DraftVersion) -> None:
    name = f"{version.path}/model.safetensors"
    data = bytearray(weights_of(store).read(name))
    data[-1] ^= 1
    weights_of(store).write(name, bytes(data))
    forget_cache(store, version)


# entering


def test_the_root_is_number_zero_and_current(ready: Store) -> None:
    root = ready.versions.current("default")
    assert (root.number, root.parent, root.state, root.kind) == (0, None, VersionState.READY, "full")
    assert root.id == f"default-000000-{root.digest[:8]}"
    assert files_of(ready, root) == SERVED
    ready.versions.verify(root)


def test_the_same_folder_again_is_the_same_root(ready: Store, tmp_path: Path) -> None:
    root = ready.versions.current("default")
    assert ready.versions.register_root("default", tmp_path / "model") == root
    assert ready.versions.register_root("default", ready.versions.folder(root)) == root
    assert states(ready) == ["ready"]


def test_other_weights_need_another_draft(ready: Store, tmp_path: Path) -> None:
    write_weights(tmp_path / "other", 5.0)
    with pytest.raises(StoreError, match="started from other weights"):
        ready.versions.register_root("default", tmp_path / "other")
    other = ready.versions.register_root("other", tmp_path / "other")
    assert ready.versions.current("other") == other
    assert [version.draft for version in ready.versions.list()] == ["default", "other"]


def test_only_what_a_server_needs_is_kept(keep_all: Store, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write_weights(folder, 0.0)
    for name in ("pytorch_model.bin", "modeling.py", ".gitattributes"):
        (folder / name).write_text("not wanted")
    (folder / "merges.txt").write_text("a b")
    (folder / "tokenizer.json").symlink_to(tmp_path / "blob")
    (tmp_path / "blob").write_text("{}")
    root = keep_all.versions.register_root("default", folder)
    assert files_of(keep_all, root) == SERVED | {"merges.txt", "tokenizer.json"}
    assert not (keep_all.versions.folder(root) / "tokenizer.json").is_symlink()


def test_a_draft_is_not_named_like_a_path(keep_all: Store, tmp_path: Path) -> None:
    for name in ("", "../up", "a/b", ".hidden", "x" * 65):
        with pytest.raises(BadInput, match="cannot name a draft"):
            keep_all.versions.register_root(name, tmp_path)


def test_a_folder_without_weights_is_no_root(keep_all: Store, tmp_path: Path) -> None:
    for folder in (tmp_path / "missing", tmp_path):
        with pytest.raises(ModelNotLoaded):
            keep_all.versions.register_root("new", folder)
    for draft in ("new", "default"):
        with pytest.raises(UnknownDraft, match="known: none"):
            keep_all.versions.current(draft)


def test_the_root_registered_at_once_is_one(keep_all: Store, settings: Settings, tmp_path: Path) -> None:
    write_weights(tmp_path / "model", 0.0, size=100_000)

    def register() -> DraftVersion:
        with open_store(settings) as mine:
            return mine.versions.register_root("fresh", tmp_path / "model")

    assert at_once(*[register] * 4) == [keep_all.versions.current("fresh")] * 4
    assert len(weights_of(keep_all).names()) == len(SERVED)


def test_a_candidate_is_entered_with_where_it_came_from(ready: Store) -> None:
    run = start(ready)
    candidate = stage(ready, run)
    assert (candidate.number, candidate.parent, candidate.state) == (1, run.parent, VersionState.CANDIDATE)
    assert files_of(ready, candidate) == SERVED - {"READY"}
    facts = json.loads(weights_of(ready).read(f"{candidate.path}/osd.json"))
    assert facts == ready.versions.provenance(candidate)
    assert (facts["id"], facts["parent"], facts["digest"]) == (candidate.id, run.parent, candidate.digest)
    assert (facts["run_id"], facts["provenance"]) == (run.id, {"command": "test"})
    ready.versions.verify(candidate)
    assert ready.versions.current("default").number == 0


def raising(error: BaseException) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        write_weights(folder, 1.0)
        raise error

    return write


def cut_off(folder: Path) -> None:
    write_weights(folder, 1.0)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-3])


def pickled(folder: Path) -> None:
    write_weights(folder, 1.0)
    (folder / "optimizer.pt").write_bytes(b"\x80")


FAILURES: list[tuple[Any, str]] = [
    (raising(OSError(28, "No space left on device")), "No space left"),
    (raising(RuntimeError("tensors on meta")), "RuntimeError: tensors on meta"),
    (cut_off, "its header says"),
    (pickled, r"optimizer\.pt"),
    (lambda folder: None, r"no \.safetensors"),
    (lambda folder: (folder / "model.safetensors").write_bytes(b"nothing"), "no safetensors header"),
]


def test_a_failed_write_leaves_nothing(ready: Store) -> None:
    before = weights_of(ready).names()
    root = ready.versions.current("default")
    for write, said in FAILURES:
        with pytest.raises(StoreWriteFailed, match=said):
            ready.versions.stage("default", root.id, "full", write)
        assert weights_of(ready).names() == before
        assert {path.name for path in (ready.versions.weights_folder / "default").iterdir()} == {Path(root.path).name}
        assert states(ready) == ["ready"]


def test_an_interrupted_write_leaves_nothing(ready: Store) -> None:
    before = weights_of(ready).names()
    with pytest.raises(KeyboardInterrupt):
        ready.versions.stage("default", ready.versions.current("default").id, "full", raising(KeyboardInterrupt()))
    assert weights_of(ready).names() == before


def test_a_parent_must_be_the_drafts_own(ready: Store, tmp_path: Path) -> None:
    other = add_root(ready, tmp_path / "other", "other")
    with pytest.raises(WrongState):
        ready.versions.stage("default", other, "full", lambda folder: write_weights(folder, 1))
    with pytest.raises(UnknownVersion):
        ready.versions.stage("default", "nobody", "full", lambda folder: write_weights(folder, 1))


def test_candidates_entered_at_once_are_numbered_apart(ready: Store, settings: Settings) -> None:
    root = ready.versions.current("default").id

    def enter(value: float) -> int:
        with open_store(settings) as mine:
            return mine.versions.stage("default", root, "full", lambda folder: write_weights(folder, value)).number

    assert set(at_once(*[partial(enter, float(value)) for value in range(4)])) == {1, 2, 3, 4}
    assert [version.number for version in ready.versions.list("default")] == [0, 1, 2, 3, 4]
    for version in ready.versions.list("default"):
        ready.versions.verify(version)


# the gate


def test_publishing_makes_it_current_once(ready: Store) -> None:
    run = start(ready)
    candidate = stage(ready, run)
    published = ready.versions.publish(candidate.id, {"gain": 0.1}, run=run)
    assert (published.state, published.evidence) == (VersionState.READY, {"gain": 0.1})
    assert ready.versions.current("default") == published
    assert "READY" in files_of(ready, published)
    assert ready.versions.publish(candidate.id, {"gain": 99}, run=run) == published
    finished = ready.runs.finish(run, RunState.PUBLISHED, published.id, {"seconds": 3})
    assert (finished.state, finished.version, finished.result) == (RunState.PUBLISHED, published.id, {"seconds": 3})
    assert ready.versions.publish(candidate.id, {}, run=run) == published, "and after the lease is gone"


def test_a_run_killed_after_publishing_is_not_done_again(ready: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    run = start(ready)
    ready.versions.publish(stage(ready, run).id, {}, run=run)
    monkeypatch.setattr("storage.records.now", lambda: run.lease_until + 1)
    following = start(ready)
    assert ready.runs.get(run.id).state is RunState.PUBLISHED
    assert not set(following.request_ids) & set(run.request_ids)


def test_a_candidate_of_another_run_or_parent_is_not_published(ready: Store) -> None:
    run = start(ready)
    orphan = ready.versions.stage("default", run.parent, "full", lambda folder: write_weights(folder, 7))
    with pytest.raises(WrongState):
        ready.versions.publish(orphan.id, {}, run=run)
    candidate = stage(ready, run)
    ready.versions.promote(orphan.id)
    with pytest.raises(WrongState, match="child of the current version"):
        ready.versions.publish(candidate.id, {}, run=run)
    assert ready.versions.current("default").id == orphan.id
    assert "READY" not in files_of(ready, candidate)


def test_publishing_needs_a_lease(ready: Store) -> None:
    run = start(ready)
    candidate = stage(ready, run)
    ready.runs.finish(run, RunState.FAILED)
    with pytest.raises(LeaseLost):
        ready.versions.publish(candidate.id, {}, run=run)
    with pytest.raises(UnknownVersion):
        ready.versions.publish("nobody", {}, run=run)


def test_damaged_candidates_are_not_published(ready: Store) -> None:
    run = start(ready)
    candidate = stage(ready, run)
    damage(ready, candidate)
    with pytest.raises(WeightsDamaged):
        ready.versions.publish(candidate.id, {}, run=run)
    assert ready.versions.current("default").number == 0


def test_rejecting(ready: Store) -> None:
    run = start(ready)
    candidate = stage(ready, run)
    rejected = ready.versions.reject(candidate.id, {"gain": -0.1})
    assert (rejected.state, rejected.evidence) == (VersionState.REJECTED, {"gain": -0.1})
    assert ready.versions.reject(candidate.id, {}) == rejected
    with pytest.raises(WrongState):
        ready.versions.publish(candidate.id, {}, run=run)
    with pytest.raises(WrongState):
        ready.versions.reject(ready.versions.current("default").id, {})


# serving and going back


def test_a_life_from_ready_to_retired(ready: Store) -> None:
    first, second = publish(ready, 1), publish(ready, 2)
    assert ready.versions.mark_serving(second.id, "server").state is VersionState.SERVING
    assert states(ready) == ["retired", "retired", "serving"]
    assert ready.versions.mark_serving(first.id, "laggard").state is VersionState.RETIRED
    assert states(ready) == ["retired", "retired", "serving"]
    assert ready.versions.serving("default") == {"laggard": first.id, "server": second.id}
    assert [version.number for version in ready.versions.lineage(second.id)] == [2, 1, 0]
    ready.versions.end_serving("laggard")
    assert ready.versions.serving("default") == {"server": second.id}
    assert states(ready) == ["retired", "retired", "serving"]


def test_a_server_of_two_drafts_marks_each_by_itself(ready: Store, tmp_path: Path) -> None:
    root, other = ready.versions.current("default"), add_root(ready, tmp_path / "sql", "sql")
    for version in (root.id, other, root.id):
        ready.versions.mark_serving(version, "server")
    assert ready.versions.served_by("server") == {"default": root.id, "sql": other}
    assert (ready.versions.serving("sql"), ready.versions.serving()) == ({"server": other}, {"server": root.id})
    newer = publish(ready)
    ready.versions.mark_serving(newer.id, "server")
    assert ready.versions.served_by("server") == {"default": newer.id, "sql": other}
    ready.versions.end_serving("server", "default")
    assert ready.versions.served_by("server") == {"sql": other}
    ready.versions.mark_serving(newer.id, "server")
    ready.versions.end_serving("server")
    assert ready.versions.served_by("server") == {}
    assert ready.versions.get(other).state is VersionState.SERVING


def test_rolling_back_to_the_parent(ready: Store) -> None:
    first, second = publish(ready, 1), publish(ready, 2)
    for version in (first, second):
        ready.versions.mark_serving(version.id, "server")
    assert ready.versions.rollback("default", "acceptance fell", of=second.id).id == first.id
    assert states(ready) == ["retired", "ready", "rolled_back"]
    evidence = ready.versions.get(second.id).evidence
    assert evidence["gain"] == 2 and evidence["rolled_back"]["reason"] == "acceptance fell"
    assert ready.versions.rollback("default", "another watcher", of=second.id).id == first.id
    third = publish(ready, 3)
    assert third.parent == first.id
    assert ready.versions.mark_serving(third.id, "server").state is VersionState.SERVING


def test_rolling_back_skips_what_is_damaged(ready: Store) -> None:
    root, first = ready.versions.current("default"), publish(ready, 1)
    publish(ready, 2)
    damage(ready, first)
    assert ready.versions.rollback("default", "fell").id == root.id
    with pytest.raises(WrongState, match="another sound version"):
        ready.versions.rollback("default", "fell again")
    assert ready.versions.current("default").id == root.id


def test_rolling_back_to_a_named_version(ready: Store, tmp_path: Path) -> None:
    root = ready.versions.current("default")
    publish(ready, 1), publish(ready, 2)
    assert ready.versions.rollback("default", "I say so", to=root.id).id == root.id
    other = add_root(ready, tmp_path / "other", "other")
    for wrong, error in ((other, WrongState), ("nobody", UnknownVersion), (root.id, WrongState)):
        with pytest.raises(error):
            ready.versions.rollback("default", "wrong", to=wrong)
    with pytest.raises(UnknownDraft):
        ready.versions.rollback("nobody", "wrong")


def test_promoting_by_hand(ready: Store) -> None:
    run = start(ready)
    candidate = stage(ready, run)
    ready.versions.reject(candidate.id, {})
    promoted = ready.versions.promote(candidate.id)
    assert (promoted.state, ready.versions.current("default").id) == (VersionState.READY, candidate.id)
    ready.versions.verify(promoted)
    with pytest.raises(UnknownVersion):
        ready.versions.promote("nobody")


def test_what_is_damaged_is_refused_everywhere(ready: Store, tmp_path: Path) -> None:
    root, first = ready.versions.current("default"), publish(ready, 1)
    damage(ready, first)
    for attempt in (
        lambda: ready.versions.verify(first),
        lambda: ready.versions.promote(first.id),
        lambda: ready.versions.export(first.id, tmp_path / "out"),
    ):
        with pytest.raises(WeightsDamaged, match="digest"):
            attempt()
    assert not (tmp_path / "out").exists()
    assert ready.versions.quarantine(first.id, "digest").state is VersionState.QUARANTINED
    assert ready.versions.current("default").id == root.id
    assert ready.versions.quarantine(first.id, "again").evidence["quarantined"]["reason"] == "digest"


def test_a_folder_that_is_not_what_was_published_is_damaged(ready: Store) -> None:
    version, lying = publish(ready), weights_of(ready)
    ready.versions.verify(version)
    lying.write(f"{version.path}/pytorch_model.bin", b"\x80")
    with pytest.raises(WeightsDamaged, match=r"digest|others than were put"):
        ready.versions.verify(version)
    lying.remove(f"{version.path}/pytorch_model.bin")
    names = [f"{version.path}/{name}" for name in ("READY", "config.json", "model.safetensors")]
    for name in names:
        data = lying.read(name)
        lying.remove(name)
        with pytest.raises(WeightsDamaged):
            ready.versions.verify(version)
        lying.write(name, data)
        ready.versions.verify(version)
    for name in (*names, f"{version.path}/osd.json"):
        lying.remove(name)
    with pytest.raises(WeightsDamaged):
        ready.versions.verify(version)


def test_quarantining_an_old_version_changes_nothing_else(ready: Store) -> None:
    old, current = publish(ready, 1), publish(ready, 2)
    assert ready.versions.quarantine(old.id, "bit rot").state is VersionState.QUARANTINED
    assert ready.versions.current("default") == current


def test_the_last_sound_version_stays_current_in_quarantine(ready: Store) -> None:
    root = ready.versions.current("default")
    damage(ready, root)
    assert ready.versions.quarantine(root.id, "digest").state is VersionState.QUARANTINED
    assert ready.versions.current("default").id == root.id


def test_an_export_is_a_plain_folder(ready: Store, tmp_path: Path) -> None:
    version = publish(ready, 3.0)
    ready.versions.export(version.id, tmp_path / "deep" / "out")
    assert {path.name for path in (tmp_path / "deep" / "out").iterdir()} == SERVED - {"READY"}
    assert load_file(tmp_path / "deep" / "out" / "model.safetensors")["weight"].tolist() == [3.0] * 8
    with pytest.raises(BadInput, match="exists"):
        ready.versions.export(version.id, tmp_path / "deep" / "out")
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["out"]


@pytest.mark.local
def test_a_sweep_removes_what_no_version_refers_to(ready: Store) -> None:
    version = publish(ready)
    home = ready.versions.weights_folder / "default"
    write_weights(home / "default-000009-0badcafe", 1)
    write_weights(home / f".{'0' * 32}.aside", 1)
    (home / "notes.txt").write_text("mine")
    assert {each.path.name for each in ready.versions.sweep()} == {"default-000009-0badcafe", f".{'0' * 32}.aside"}
    assert "notes.txt" in files_below(home)
    for kept in ready.versions.list():
        ready.versions.verify(kept)
    assert ready.versions.current("default") == version


def test_a_sweep_during_staging_takes_nothing(ready: Store) -> None:
    swept: list[object] = []

    def write(folder: Path) -> None:
        write_weights(folder, 1.0)
        swept.extend(ready.sweep())

    version = ready.versions.stage("default", ready.versions.current("default").id, "full", write)
    assert swept == []
    ready.versions.verify(version)
