"""Weights of an object store beyond what every place does: the cache, and what killed processes leave."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from storage import records
from storage.errors import BadSetting, PlaceUnreachable, StoreWriteFailed, WeightsDamaged
from storage.files.bucket import ObjectStore
from storage.files.places import GRACE_SECONDS
from storage.settings import Settings, load_settings
from storage.store import Store, lay_out, open_store
from storage.versions.weight_files import CACHE_SECONDS
from tests.storage.make import add_root, samples, write_weights
from tests.storage.places import files_below, forget_cache, segments_of, weights_of
from tests.storage.s3 import BUCKET, environment, s3_server
from tests.support import launch

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def settings(memory: Path, s3: str) -> Settings:
    return load_settings(
        storage={"directory": memory / "data", "cache": memory / "cache", "weights": f"{s3}/w", "samples": f"{s3}/s"}
    )


@pytest.fixture
def store(settings: Settings, memory: Path):
    with open_store(settings) as opened:
        add_root(opened, memory / "model")
        yield opened


def test_another_machine_fetches_a_version_once(store: Store, settings: Settings, memory: Path) -> None:
    kept = settings.storage.model_copy(update={"cache": memory / "elsewhere"})
    version = store.versions.current("default")
    with open_store(settings.model_copy(update={"storage": kept})) as other:
        other.versions.verify(version)
        folder = other.versions.folder(version)
        assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors", "osd.json"]
        inode = folder.stat().st_ino
        other.versions.verify(version)
        assert other.versions.folder(version).stat().st_ino == inode
    assert {name.split("-")[0] for name in files_below(memory / "data")} == {"osd.db"}


def test_a_damaged_cache_is_fetched_anew_and_a_damaged_store_is_refused(store: Store) -> None:
    version = store.versions.current("default")
    (store.versions.folder(version) / "model.safetensors").write_bytes(b"bit rot")
    store.versions.verify(version)
    weights_of(store).write(f"{version.path}/model.safetensors", b"others")
    with pytest.raises(WeightsDamaged, match="others than were put"):
        store.versions.verify(version)
    forget_cache(store, version)
    for attempt in (store.versions.verify, store.versions.folder):
        with pytest.raises(WeightsDamaged, match="digest"):
            attempt(version)
    assert files_below(store.versions.weights_folder) == [], "nothing that is damaged stays in the cache"


def test_a_sweep_takes_what_a_killed_upload_left(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = weights_of(store).names()
    for name in ("model.safetensors", "sub/more.json"):
        weights_of(store).write(f"default/{'0' * 32}/{name}", b"half")
    weights_of(store).write("default/notes.txt", b"mine")
    assert store.versions.sweep() == []
    later = time.time() + 2 * GRACE_SECONDS
    monkeypatch.setattr(records, "now", lambda: later)
    assert [str(each.path)[-32:] for each in store.versions.sweep()] == ["0" * 32]
    assert weights_of(store).names() == sorted([*kept, "default/notes.txt"])
    store.versions.verify(store.versions.current("default"))


def test_an_upload_that_was_swept_is_not_entered(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The uploader slept for hours between its upload and the ledger."""
    entering = store.versions.files._require_put
    later = time.time() + 2 * GRACE_SECONDS

    def swept_first(folder: Path, path: str) -> None:
        store.versions.files._remove_all(path)
        entering(folder, path)

    monkeypatch.setattr(records, "now", lambda: later)
    monkeypatch.setattr(store.versions.files, "_require_put", swept_first)
    with pytest.raises(StoreWriteFailed, match="not whole, or was swept"):
        store.versions.stage(
            "default", store.versions.current("default").id, "full", lambda folder: write_weights(folder, 1.0)
        )
    assert [version.number for version in store.versions.list()] == [0]


def test_the_cache_loses_what_nobody_used_for_a_week(store: Store) -> None:
    version = store.versions.current("default")
    folder = store.versions.folder(version)
    assert store.versions.sweep() == []
    long_ago = time.time() - 2 * CACHE_SECONDS
    os.utime(folder, (long_ago, long_ago))
    assert [each.path for each in store.versions.sweep()] == [folder]
    store.versions.verify(version)


def kill_child(settings: Settings, *command: str) -> int:
    """The exit status of `tests.storage.child` in a process of its own, over the same places."""
    kept = settings.storage
    places = {f"OSD_STORAGE__{name.upper()}": str(getattr(kept, name)) for name in ("samples", "weights", "cache")}
    line = [sys.executable, "-m", "tests.storage.child", str(kept.directory), "-", *command]
    return int(launch.run(line, cwd=ROOT, env=os.environ | places).returncode)


@pytest.mark.parametrize(("point", "kept"), [("before commit", 8), ("after commit", 12)])
def test_a_recorder_that_is_killed_leaves_an_orphan_at_most(
    store: Store, settings: Settings, point: str, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kill_child(settings, "add", point) == -signal.SIGKILL
    assert len(store.samples.read([f"r{number}" for number in range(12)])) == kept
    assert len(segments_of(store).names()) == 3
    later = time.time() + 2 * GRACE_SECONDS
    monkeypatch.setattr(records, "now", lambda: later)
    assert len(store.sweep()) == (12 - kept) // 4
    assert len(store.samples.read([f"r{number}" for number in range(12)])) == kept


@pytest.mark.parametrize(("point", "numbers"), [("stage: before commit", [0]), ("publish: before commit", [0, 1])])
def test_a_trainer_that_is_killed_publishes_nothing(
    store: Store, settings: Settings, point: str, numbers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.samples.add([samples(1)])
    assert kill_child(settings, "train", point) == -signal.SIGKILL
    assert store.versions.current("default").number == 0
    assert [version.number for version in store.versions.list()] == numbers
    for version in store.versions.list():
        store.versions.verify(version)
    later = time.time() + 2 * GRACE_SECONDS
    monkeypatch.setattr(records, "now", lambda: later)
    assert len(store.versions.sweep()) == (numbers == [0])


def test_an_existing_store_moves_by_copying_its_folders(s3: str, memory: Path) -> None:
    plain = load_settings(storage={"directory": memory / "data", "cache": memory / "cache"})
    with open_store(plain) as before:
        add_root(before, memory / "model")
        before.samples.add([samples(1)])
    for name in ("segments", "weights"):
        for path in files_below(memory / "data" / name):
            ObjectStore(f"{s3}/{name}", name).put_file(memory / "data" / name / path, path)
    kept = plain.storage.model_copy(update={"samples": f"{s3}/segments", "weights": f"{s3}/weights"})
    with open_store(plain.model_copy(update={"storage": kept})) as after:
        after.versions.verify(after.versions.current("default"))
        assert len(after.samples.read(["r1"])) == 1 and after.sweep() == []


BAD_URLS = {
    "foo://bucket": "not known to fsspec",
    "s3://key:secret@bucket/x": "environment",
    "s3://bucket?key=secret": "environment",
    "s3://": "one object store and a bucket",
    "s3:bucket": "s3://",
    "file://host/x": "whole path",
    "gs://bucket/x": "pip install 'gcsfs'",
}


@pytest.mark.parametrize("url", BAD_URLS)
@pytest.mark.parametrize("key", ["samples", "weights"])
def test_a_url_that_names_no_store_is_a_bad_setting(memory: Path, url: str, key: str) -> None:
    with pytest.raises(BadSetting) as caught:
        open_store(load_settings(storage={"directory": memory / "data", key: url}))
    assert BAD_URLS[url] in str(caught.value) and f"storage.{key}" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert not (memory / "data").exists(), "nothing half-made"


def test_a_file_url_and_a_path_are_folders(memory: Path) -> None:
    store = lay_out(load_settings(storage={"directory": memory, "samples": f"file://{memory}/a%20b", "weights": "w"}))
    assert (store.samples.folder, store.versions.weights_folder) == (memory / "a b", Path("w").absolute())


def test_a_bucket_that_is_not_there_says_so(s3: str, store: Store) -> None:
    bucket = ObjectStore("s3://osd-no-such-bucket/x", "storage.samples")
    for attempt in (
        lambda: bucket.put("a", b""), lambda: bucket.get("a"), lambda: bucket.exists("a"), bucket.list,
    ):  # fmt: skip
        with pytest.raises(PlaceUnreachable, match=r"no such bucket.*storage\.samples"):
            attempt()


def test_a_store_that_does_not_answer_says_so(
    s3: str, store: Store, monkeypatch: pytest.MonkeyPatch, memory: Path
) -> None:
    """Nothing is indexed, and what is cached serves on."""
    version = store.versions.current("default")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    _forget_connections()
    with open_store(load_settings(storage={"directory": memory / "data", "samples": s3, "weights": s3})) as away:
        with pytest.raises(PlaceUnreachable, match="does not answer"):
            away.samples.add([samples(1)])
        assert away.samples.recent(limit=9) == []
    assert (store.versions.folder(version) / "model.safetensors").exists()
    _forget_connections()


def test_missing_credentials_are_said_and_never_shown(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    _forget_connections()
    with pytest.raises(PlaceUnreachable, match="AWS_ACCESS_KEY_ID") as caught:
        ObjectStore(s3, "storage.samples").put("a", b"")
    assert "not-a-secret" not in str(caught.value)
    _forget_connections()


def test_refused_credentials_are_said_and_never_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server asks for keys of its own after its first action, which made the bucket."""
    with s3_server(tmp_path, INITIAL_NO_AUTH_ACTION_COUNT="1") as endpoint:
        for name, value in environment(endpoint).items():
            monkeypatch.setenv(name, value)
        _forget_connections()
        with pytest.raises(PlaceUnreachable, match=r"refused these credentials.*storage\.samples") as caught:
            ObjectStore(f"s3://{BUCKET}/x", "storage.samples").put("a", b"")
    assert "not-a-secret" not in str(caught.value)
    _forget_connections()


def _forget_connections() -> None:
    """fsspec keeps one file system for all who ask with the same arguments; the environment is not among them."""
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
