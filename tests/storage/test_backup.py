"""A backup of a store in use is whole, and restored elsewhere it is the same store, which goes on."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from storage import backup
from storage.backup import back_up, check, read_facts, restore
from storage.errors import BadInput, SegmentDamaged, StoreError, WeightsDamaged
from storage.records import RunState
from storage.settings import Settings, VersionLimits
from storage.store import Store, open_store
from tests.storage.conftest import new_postgres
from tests.storage.make import add_root, claim, samples, stage, write_weights
from tests.storage.places import files_below, segments_of, weights_of

PLACED = True  # see conftest.py


@pytest.fixture
def filled(keep_all: Store, tmp_path: Path) -> Store:
    """A draft with four versions, the last of which is current, and three segments."""
    version = keep_all.versions.get(add_root(keep_all, tmp_path / "model"))
    for number in range(3):
        keep_all.samples.add([samples(2 * number, m=1), samples(2 * number + 1, m=2)])
        version = keep_all.versions.promote(
            keep_all.versions.stage("default", version.id, "full", lambda f, v=number: write_weights(f, v + 1.0)).id
        )
    keep_all.decisions.name(version.id, "good")
    return keep_all


@contextmanager
def elsewhere(settings: Settings, tmp_path: Path) -> Iterator[Settings]:
    """Settings of an empty store of the same kinds."""
    kept, name = settings.storage, uuid.uuid4().hex
    places = {
        key: f"{value.rpartition('/')[0]}-{name}/{key}"
        for key, value in (("samples", kept.samples), ("weights", kept.weights)) if value
    }  # fmt: skip
    own = {"directory": tmp_path / "there", "cache": tmp_path / "cache", **places}
    with new_postgres() if kept.url else nullcontext(None) as url:
        yield settings.model_copy(update={"storage": kept.model_copy(update={**own, "url": url})})


def url_of(settings: Settings) -> str:
    return settings.storage.database_url()


def test_restored_elsewhere_it_is_the_same_store_and_goes_on(filled: Store, settings: Settings, tmp_path: Path) -> None:
    facts = back_up(filled, url_of(settings), tmp_path / "copy")
    assert (facts.segments, facts.requests, facts.versions) == (3, 6, 4) and facts == read_facts(tmp_path / "copy")
    with elsewhere(settings, tmp_path) as there:
        assert restore(there, tmp_path / "copy") == facts
        with open_store(there) as store:
            assert store.db.check()["current"] and store.keeper.verify().faults == ()
            assert store.versions.list() == filled.versions.list()
            assert store.versions.current("default") == filled.versions.get("good") == store.versions.get("good")
            ids = [f"r{number}" for number in range(6)]
            assert [one.tokens.tolist() for one in store.samples.read(ids)] == [
                one.tokens.tolist() for one in filled.samples.read(ids)
            ]
            run = claim(store)
            assert run is not None and len(run.request_ids) > 0
            new = stage(store, run.parent, 9.0, run)
            assert store.versions.publish(new.id, {}, run=run).number == 4
            store.runs.finish(run, RunState.PUBLISHED, new.id)
            check(store)
        with pytest.raises(BadInput, match="already"):
            restore(there, tmp_path / "copy")
    assert filled.versions.current("default").number == 3, "the first store has not changed"


def test_what_is_deleted_and_written_meanwhile_is_in_no_half(
    filled: Store, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at the metadata and the copies of the files a segment and a version go, and others come."""
    real, copies = backup._snapshot, []

    @contextmanager
    def read(*arguments: object) -> Iterator[object]:
        with real(*arguments) as found:  # type: ignore[arg-type]
            copies.append(found)
            if len(copies) == 1:
                filled.samples.purge(request_id="r0")
                filled.samples.add([samples(9, m=1)])
                filled.version_keeper.retain(VersionLimits(served=1))
            yield found

    monkeypatch.setattr(backup, "_snapshot", read)
    facts = back_up(filled, url_of(settings), tmp_path / "copy")
    kept = {version.path for version in filled.versions.list(deleted=False)}
    assert len(copies) == 2 and facts.requests == 6 and facts.versions == len(kept) < 4
    assert set(files_below(tmp_path / "copy" / "segments")) == set(segments_of(filled).names())
    weights = files_below(tmp_path / "copy" / "weights")
    assert {name.rpartition("/")[0] for name in weights} == kept and set(weights) == set(weights_of(filled).names())


def test_under_load_it_is_whole(filled: Store, settings: Settings, tmp_path: Path) -> None:
    """Another thread writes samples, purges and publishes all the while."""
    stop, number = threading.Event(), [100]

    def load() -> None:
        while not stop.is_set():
            number[0] += 1
            filled.samples.add([samples(number[0], m=1)])
            filled.samples.purge(
                before=0.0 if number[0] < 106 else filled.samples.read([f"r{number[0] - 5}"])[0].created_at
            )
            staged = filled.versions.stage(
                "default", filled.versions.current("default").id, "full", lambda f: write_weights(f, float(number[0]))
            )
            filled.versions.promote(staged.id)

    thread = threading.Thread(target=load)
    thread.start()
    try:
        facts = back_up(filled, url_of(settings), tmp_path / "copy")
    finally:
        stop.set()
        thread.join()
    with elsewhere(settings, tmp_path) as there:
        assert restore(there, tmp_path / "copy") == facts
        with open_store(there) as store:
            assert store.keeper.verify().faults == ()


@pytest.mark.local
def test_what_is_damaged_is_not_restored_as_sound(filled: Store, settings: Settings, tmp_path: Path) -> None:
    back_up(filled, url_of(settings), tmp_path / "copy")
    segment = next((tmp_path / "copy" / "segments").rglob("*.parquet"))
    whole = segment.read_bytes()
    middle = len(whole) // 2
    segment.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    with elsewhere(settings, tmp_path) as there, pytest.raises(SegmentDamaged):
        restore(there, tmp_path / "copy")
    segment.write_bytes(whole)
    current = filled.versions.current("default")
    (tmp_path / "copy" / "weights" / current.path / "model.safetensors").write_bytes(b"no")
    with elsewhere(settings, tmp_path / "second") as there, pytest.raises(WeightsDamaged):
        restore(there, tmp_path / "copy")


@pytest.mark.local
def test_a_store_that_is_damaged_is_not_backed_up_in_silence(filled: Store, settings: Settings, tmp_path: Path) -> None:
    current = filled.versions.current("default")
    (filled.versions.folder(current) / "model.safetensors").write_bytes(b"no")
    with pytest.raises(StoreError, match=current.id):
        back_up(filled, url_of(settings), tmp_path / "copy")
    assert files_below(tmp_path) == [name for name in files_below(tmp_path) if not name.startswith("copy")]
    filled.versions.quarantine(current.id, "seen to be damaged")
    assert back_up(filled, url_of(settings), tmp_path / "copy").versions == 4


@pytest.mark.local
def test_what_is_no_backup_or_of_another_kind_is_refused(filled: Store, settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match="is no backup"):
        restore(settings, tmp_path / "empty")
    facts = back_up(filled, url_of(settings), tmp_path / "copy")
    with pytest.raises(BadInput, match="exists"):
        back_up(filled, url_of(settings), tmp_path / "copy")
    other = "postgresql" if facts.dialect == "sqlite" else "sqlite"
    for changes, words in (({"format": 99}, "of format 99"), ({"dialect": other}, f"The backup is of {other}")):
        wrong = {**json.loads((tmp_path / "copy" / "backup.json").read_text()), **changes}
        (tmp_path / "empty" / "backup.json").write_text(json.dumps(wrong))
        with pytest.raises(BadInput, match=words):
            restore(settings, tmp_path / "empty")
    assert replace(facts, format=1) == facts
