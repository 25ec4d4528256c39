"""A store that has served, trained and kept."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.records import RunState
from storage.runs import ClaimTerms
from storage.settings import load_settings
from storage.store import Store, open_store
from tests.storage.make import add_root, outcome, samples

PLACES = ((10, 8, 2), (10, 6, 2), (10, 5, 1), (10, 3, 2))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(load_settings(storage={"directory": tmp_path / "data", "holdout": 0.0})) as opened:
        root = add_root(opened, tmp_path / "draft")
        done = outcome(draft_version=root, accepted=22, rejections=7, positions=PLACES, tenant="secret tenant")
        opened.outcomes.add([done, done], "w")
        opened.samples.add([samples(n) for n in range(3)])
        opened.versions.mark_serving(root, "w")
        run = opened.runs.claim("default", "w", ClaimTerms(1, 0, 60))
        assert run is not None
        opened.runs.finish(run, RunState.REJECTED, result={"positions": 30, "steps": 3})
        opened.samples.add([samples(n) for n in range(3, 5)])
        yield opened
    shutil.rmtree(tmp_path / "data")
