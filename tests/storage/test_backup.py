"""A backup of a store in use is whole, and restored elsewhere it is the same store, which goes on."""

from __future__ import annotations

import itertools
import json
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import inspect

from storage import backup
from storage.backup import Backup, back_up, read_facts, restore
from storage.errors import BadInput, OsdError, SchemaOutdated, StoreError
from storage.records import RunState
from storage.settings import Settings, VersionLimits
from storage.store import Store, lay_out, open_store
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
            assert store.keeper.verify().faults == ()
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


def require_whole(there: Settings, facts: Backup) -> None:
    """Every file that the restored metadata name is there and sound, and the trail says whence it came."""
    with open_store(there) as store:
        assert store.keeper.verify().faults == () and store.db.check()["current"]
        versions = store.versions.list(deleted=False)
        for version in versions:
            store.versions.verify(version)
        assert (sum(len(store.samples.read([f"r{n}"])) for n in range(6)), len(versions)) == (6, facts.versions)
        (entry,) = [one for one in store.trail.history() if one.action == "db restore"]
        assert entry.subject == "copy"


def require_nothing(there: Settings) -> None:
    """No file is left anywhere, nor any table."""
    with closing(lay_out(there)) as store:
        assert [place.list() for place in backup._places(store).values()] == [[], []]
        assert files_below(store.directory) == []
        assert there.storage.url is None or inspect(store.db.engine).get_table_names() == []


def test_whatever_is_missing_or_changed_nothing_is_restored_and_the_sound_backup_is(
    filled: Store, settings: Settings, tmp_path: Path
) -> None:
    """Each file of a backup gone, empty, cut, with one byte changed at its begin, in the middle and at its
    end, longer, under another name; and a file too many."""
    copy = tmp_path / "copy"
    facts, tried = back_up(filled, url_of(settings), copy), 0
    damages: list[Callable[[bytes], bytes | None]] = [
        lambda _: None, lambda _: b"", lambda whole: whole[: len(whole) // 2], lambda whole: whole[:-1],
        *(lambda whole, p=place: _flipped(whole, int(p * (len(whole) - 1))) for place in (0, 0.5, 1)),
        lambda whole: whole + b"0",
    ]  # fmt: skip
    with elsewhere(settings, tmp_path) as there:
        for name in files_below(copy):
            whole = (copy / name).read_bytes()
            for damage in damages[:: 3 if there.storage.url else 1]:  # over a network it takes longer
                (copy / name).unlink()
                if (left := damage(whole)) is not None:
                    (copy / name).write_bytes(left)
                if left != whole:
                    tried += 1
                    with pytest.raises(OsdError):
                        restore(there, copy)
                (copy / name).write_bytes(whole)
            (copy / name).rename((copy / name).with_name("other"))
            with pytest.raises(OsdError):
                restore(there, copy)
            (copy / name).with_name("other").rename(copy / name)
        (copy / "segments" / "more").write_text("0")
        with pytest.raises(StoreError, match="added: segments/more"):
            restore(there, copy)
        (copy / "segments" / "more").unlink()
        require_nothing(there)
        assert tried > 50 and restore(there, copy) == facts
        require_whole(there, facts)


def _flipped(whole: bytes, place: int) -> bytes:
    return whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :] if whole else b"0"


@pytest.mark.parametrize("schema", ["0001", "0016", "0099", 5])
def test_a_backup_of_a_schema_that_this_osd_cannot_open_is_refused_before_anything_is_written(
    filled: Store, settings: Settings, tmp_path: Path, schema: str | int
) -> None:
    back_up(filled, url_of(settings), tmp_path / "copy")
    file = tmp_path / "copy" / "backup.json"
    whole = file.read_text()
    file.write_text(json.dumps({**json.loads(whole), "schema": schema}))
    with elsewhere(settings, tmp_path) as there:
        with pytest.raises(SchemaOutdated, match=f"in .*copy has schema {schema}") as refused:
            restore(there, tmp_path / "copy")
        assert refused.value.exit_code == 5
        require_nothing(there)
        file.write_text(whole)
        require_whole(there, restore(there, tmp_path / "copy"))


class Killed(BaseException):
    """What no handler takes for an error."""


@pytest.mark.parametrize("error", [pytest.param(StoreError(reason="no space left"), marks=pytest.mark.long), Killed()])
def test_wherever_a_restore_fails_it_leaves_nothing_and_can_be_done_again(
    filled: Store, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """At each file that is put, and as the database is."""
    facts = back_up(filled, url_of(settings), tmp_path / "copy")
    puts = sum(len(files_below(tmp_path / "copy" / name)) for name in ("segments", "weights"))
    with elsewhere(settings, tmp_path) as there:
        with closing(lay_out(there)) as store:
            kinds = {type(place) for place in backup._places(store).values()}
        steps = [(kind, "put_file", number) for kind in kinds for number in range(puts)]
        for where, name, number in [*steps, (backup, "_run" if there.storage.url else "sync_path", 0)]:
            with monkeypatch.context() as patched:
                patched.setattr(where, name, failing(getattr(where, name), number, error))
                with pytest.raises(type(error)):
                    restore(there, tmp_path / "copy")
            require_nothing(there)
        assert puts > 9 and restore(there, tmp_path / "copy") == facts
        require_whole(there, facts)


def failing(real: Callable[..., None], number: int, error: BaseException) -> Callable[..., None]:
    """Do as the real one so often, and then fail."""
    calls = itertools.count()

    def call(*arguments: object, **named: object) -> None:
        if next(calls) == number:
            raise error
        real(*arguments, **named)

    return call


@pytest.mark.local
def test_what_a_killed_restore_left_is_in_nobodys_way(filled: Store, settings: Settings, tmp_path: Path) -> None:
    facts = back_up(filled, url_of(settings), tmp_path / "copy")
    with elsewhere(settings, tmp_path) as there:
        directory = there.storage.data_directory()
        for name in ("segments", "weights"):
            shutil.copytree(tmp_path / "copy" / name, directory / name)
        if filled.db.dialect == "sqlite":
            (directory / ".osd.db.aside").write_text("half of it")
        assert restore(there, tmp_path / "copy") == facts
        require_whole(there, facts)
        assert not (directory / ".osd.db.aside").exists()
    with elsewhere(settings, tmp_path / "second") as there:
        directory = there.storage.data_directory()
        (directory / "segments").mkdir(parents=True)
        (directory / "segments" / "mine").write_text("x")
        with pytest.raises(BadInput, match="something at"):
            restore(there, tmp_path / "copy")
        if filled.db.dialect == "sqlite":
            (directory / "segments" / "mine").rename(directory / "osd.db-wal")
            with pytest.raises(BadInput, match="There is a database"):
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
    assert replace(facts, format=2) == facts
