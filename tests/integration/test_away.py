"""The database or the sample store goes away: serving goes on, what was finished waits on the disk, and all of it is in
the store once when that is back; after the process was killed, too."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from osd.recording.recorder import Recorder
from osd.recording.writer import StoreWriter
from storage.errors import BadExport, DatabaseUnreachable, ForgottenAhead
from storage.replay.spill import OUTCOMES, SAMPLES
from storage.settings import Settings, load_settings
from storage.sql.outcome_tables import OutcomeBatchRow
from storage.store import Store, open_store
from tests.integration.make import ALL, keep
from tests.integration.proxy import Proxy
from tests.storage.make import assert_same, samples
from tests.support.launch import Process
from tests.trainer.processes import ROOT, environment, wait_for


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries follow each other quickly."""
    monkeypatch.setattr("osd.recording.writer.SHORTEST", 0.1)
    monkeypatch.setattr("osd.recording.writer.LONGEST", 0.5)


@pytest.fixture
def settings(tmp_path: Path, database: tuple[str, Proxy], bucket: tuple[str, Proxy]) -> Settings:
    kept = {"url": database[0], "samples": f"{bucket[0]}/samples", "directory": tmp_path / "data", "holdout": 0.0}
    return load_settings(storage=kept)


def taken_in(writer: StoreWriter) -> bool:
    writer.catch_up()
    return writer.due is None


def assert_once(store: Store, numbers: range) -> None:
    """Everything is there once."""
    ids = [f"r{n}" for n in numbers]
    assert sorted(store.samples.recent(limit=99)) == sorted(ids)
    for number, read in zip(numbers, store.samples.read(ids), strict=True):
        assert_same(read, samples(number, created_at=1e9 + number))
    (row,) = store.outcomes.acceptance()
    assert (row.requests, row.drafted, row.accepted) == (len(ids), 40 * len(ids), 30 * len(ids))
    assert sorted(each.request_id for each in store.outcomes.recent()) == sorted(ids)


@pytest.mark.parametrize("away", ["database", "bucket"])
def test_what_was_finished_waits_on_the_disk_and_is_kept_once(
    settings: Settings, away: str, request: pytest.FixtureRequest
) -> None:
    wire: Proxy = request.getfixturevalue(away)[1]
    with open_store(settings) as store:
        writer = StoreWriter(store, settings, "server")
        keep(writer, *ALL[:4])
        wire.cut()
        for begin in (4, 6, 8):
            keep(writer, begin, begin + 1)
        assert writer.spilled == 6 and writer.spill.bytes and writer.due is not None
        wire.mend()
        wait_for(lambda: taken_in(writer))
        keep(writer, *ALL[10:])
        assert_once(store, ALL)
        assert writer.spill.waiting() == [] and writer.spill.bytes == 0
        assert (writer.lost_positions, writer.lost_outcomes) == (0, 0)


def test_what_was_forgotten_while_it_waited_on_the_disk_is_not_kept(
    settings: Settings, database: tuple[str, Proxy]
) -> None:
    with open_store(settings) as store:
        writer = StoreWriter(store, settings, "server")
        database[1].cut()
        keep(writer, *ALL[:4])
        database[1].mend()
        with pytest.raises(ForgottenAhead):
            store.forgetter.forget(["r1", "r2"])
        wait_for(lambda: taken_in(writer))
        assert sorted(store.samples.recent(limit=99)) == ["r0", "r3"]
        assert sorted(each.request_id for each in store.outcomes.recent()) == ["r0", "r3"]
        assert writer.spill.waiting() == []


def test_a_commit_whose_answer_was_lost_counts_once(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wire is cut after the commit and before its answer: the server cannot know, and sends it again."""
    with open_store(settings) as store:
        writer = StoreWriter(store, settings, "server")

        def lossy(each: Callable[..., object]) -> Callable[..., object]:
            def then_away(*arguments: object, **options: object) -> object:
                each(*arguments, **options)
                raise DatabaseUnreachable(url="postgresql://…", reason="cut in mid-commit")

            return then_away

        with monkeypatch.context() as cut:
            cut.setattr(store.samples, "add", lossy(store.samples.add))
            cut.setattr(store.outcomes, "add", lossy(store.outcomes.add))
            cut.setattr("osd.recording.writer.SHORTEST", 0.0)
            writer._rest = 0.0
            keep(writer, *ALL)
        assert len(writer.spill.waiting()) == 2
        wait_for(lambda: taken_in(writer))
        assert_once(store, ALL)
        keep(writer, 99)  # and the notes of what cannot be sent again do not pile up
        with store.db.session(read_only=True) as session:
            assert session.query(OutcomeBatchRow).count() == 1


@pytest.mark.parametrize("point", ["spilled", "samples added", "outcomes added"])
def test_the_next_process_takes_up_what_a_killed_one_left(
    settings: Settings, database: tuple[str, Proxy], point: str, tmp_path: Path
) -> None:
    (tmp_path / "settings.json").write_text(settings.model_dump_json())
    command = [sys.executable, "-m", "tests.integration.child", str(tmp_path / "settings.json"), point]
    with open_store(settings) as store:
        with Process(command, cwd=ROOT, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            assert child.stdin and child.stdout
            assert child.stdout.readline() == b"open\n"
            database[1].cut()
            child.stdin.write(b"\n")
            child.stdin.flush()
            assert child.stdout.readline() == b"spilled\n"
            database[1].mend()
            child.stdin.close()
            assert child.wait(60) == -9
        recorder = Recorder(store, settings, "next")  # by itself, without any traffic
        wait_for(lambda: recorder.writer.spill.waiting() == [])
        recorder.close()
        assert_once(store, ALL)
        assert store.outcomes.acceptance(by=["worker"])[0].by["worker"] == "killed"


def test_beyond_its_limit_what_comes_is_dropped_and_counted(settings: Settings, database: tuple[str, Proxy]) -> None:
    serve = settings.serve.model_copy(update={"spill_mb": 0})
    with open_store(settings) as store:
        writer = StoreWriter(store, settings.model_copy(update={"serve": serve}), "server")
        database[1].cut()
        keep(writer, *ALL)
        assert (writer.lost_positions, writer.lost_outcomes, writer.spilled) == (3 * len(ALL), len(ALL), 0)
        assert writer.due is None


def test_tenants_that_may_not_be_kept_are_not_spilled(settings: Settings, database: tuple[str, Proxy]) -> None:
    with open_store(settings) as store:
        store.tenants.allow("clinic", learn=False)
        writer = StoreWriter(store, settings, "server")
        database[1].cut()
        writer.keep([samples(1, tenant="clinic"), samples(2)], [])
        (path,) = writer.spill.waiting()
        assert [each.request_id for each in writer.spill.read_samples(path)] == ["r2"]


def test_spilled_files_are_encrypted_where_segments_are(
    settings: Settings, database: tuple[str, Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RING", "one " + "A" * 43 + "=")
    kept = settings.storage.model_copy(update={"encryption": "env:RING"})
    settings = settings.model_copy(update={"storage": kept})
    with open_store(settings) as store:
        writer = StoreWriter(store, settings, "server")
        database[1].cut()
        keep(writer, *ALL)
        for path in writer.spill.waiting():
            content = path.read_bytes()
            assert content[-4:] == b"PARE" and b"request_id" not in content  # nor columns' names
        database[1].mend()
        wait_for(lambda: taken_in(writer))
        assert_once(store, ALL)


def test_a_damaged_file_is_left_aside_and_stops_no_other(settings: Settings, database: tuple[str, Proxy]) -> None:
    with open_store(settings) as store:
        writer = StoreWriter(store, settings, "server")
        database[1].cut()
        keep(writer, 90)
        damaged, lost = writer.spill.waiting()
        assert damaged.name.endswith(SAMPLES) and lost.name.endswith(OUTCOMES)
        damaged.write_bytes(damaged.read_bytes()[:-20])
        lost.unlink()
        with pytest.raises(BadExport):
            writer.spill.read_samples(damaged)
        keep(writer, *ALL)
        database[1].mend()
        wait_for(lambda: taken_in(writer))
        assert_once(store, ALL)
        assert damaged.with_name(damaged.name + ".refused").exists()
