"""Two trainers and three recorders at once over PostgreSQL and S3, each as if on a machine of its own: data directories
and caches are their own, and only the database and the bucket are shared."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from storage.records import RequestSamples, RunState, new_id, now
from storage.replay.exports import write_export
from storage.replay.segment_files import is_held_out
from storage.settings import load_settings
from storage.store import open_store
from tests.storage.conftest import postgres_url, s3, s3_endpoint, upgraded_postgres  # noqa: F401, fixtures
from tests.support.launch import Process
from tests.trainer.conftest import HOLDOUT
from tests.trainer.processes import PATIENCE, ROOT, environment, wait_for, worker, write_config

TRAINERS, RECORDERS, REQUESTS = 2, 3, 96


@pytest.fixture
def machine(tmp_path: Path, postgres_url: str, s3: str):  # noqa: F811
    """Makes an osd.toml for a machine."""

    def make(name: str) -> Path:
        home = tmp_path / name
        home.mkdir()
        kept = {
            "directory": str(home / "data"), "cache": str(home / "cache"), "url": postgres_url,
            "samples": f"{s3}/samples", "weights": f"{s3}/weights", "holdout": HOLDOUT,
        }  # fmt: skip
        learn = {"interval_requests": 8, "max_requests": 16, "max_age_seconds": 0.5, "replay_requests": 0, "epochs": 1}
        runs = {"poll_seconds": 0.1, "device": "cpu", "nice": 0}
        return write_config(home / "osd.toml", {"storage": kept, "learn": learn, "trainer": runs})

    return make


def test_each_request_is_claimed_exactly_once(
    machine, draft_folder: Path, all_answers: list[RequestSamples], tmp_path: Path
) -> None:
    everybody = [replace(each, request_id=new_id(), created_at=now()) for each in all_answers[:REQUESTS]]
    write_export(tmp_path / "all.parquet", [everybody], overwrite=False)
    to_train = {each.request_id for each in everybody if not is_held_out(each, HOLDOUT)}
    with ExitStack() as stack:
        store = stack.enter_context(open_store(load_settings(machine("me"))))
        store.versions.register_root("default", draft_folder)
        trainers = [stack.enter_context(worker(machine(f"trainer-{n}"))) for n in range(TRAINERS)]
        command = [sys.executable, "-m", "tests.trainer.recorder"]
        recorders = [
            Process(
                [*command, str(machine(f"recorder-{n}")), str(tmp_path / "all.parquet"), str(n), str(RECORDERS)],
                cwd=ROOT, env=environment(),
            )
            for n in range(RECORDERS)
        ]  # fmt: skip
        assert [each.wait(PATIENCE) for each in recorders] == [0] * RECORDERS

        def claimed() -> list[str]:
            return [each for run in store.runs.list() if run.finished_at for each in run.request_ids]

        wait_for(lambda: len(claimed()) >= len(to_train), trainers[0])
        runs = store.runs.list()
        assert {run.state for run in runs} <= {RunState.PUBLISHED, RunState.REJECTED}
        assert Counter(claimed()) == Counter(to_train), "all of them, each once"
        assert store.samples.waiting("default").requests == 0
        assert len(store.samples.read([each.request_id for each in everybody])) == REQUESTS
        for version in store.versions.list(deleted=False):
            store.versions.verify(version)
        numbers = [version.number for version in store.versions.list("default")]
        assert numbers == list(range(len(runs) + 1)), "a version a run, none skipped or doubled"
