"""Three thousand requests with a run every eight: the disk stays within the policy, and so does the number of files.

``OSD_PICTURE=FILE`` draws files, bytes and versions over requests into FILE.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path

import pytest

from osd.demo import DRAFT, TARGET
from osd.demo.prompts import DOMAINS, prompts
from osd.engine.session import serving
from osd.models.pair import load_pair
from osd.prompts import encode
from storage.records import Request, RunState
from storage.settings import load_settings
from storage.store import Store, open_store
from storage.versions.weights import MASTER
from tests.support.waiting import until
from trainer.worker.schedule import TrainingSchedule

REQUESTS, EVERY, SETTLED = 3000, 8, 1000
SERVED = 4
PICTURE = os.environ.get("OSD_PICTURE")  # read here: no such variable reaches a test


@dataclass
class Disk:
    """What lay on the disk after so many requests."""

    requests: list[int] = field(default_factory=list)
    files: list[int] = field(default_factory=list)
    """Those that servers load."""
    masters: list[int] = field(default_factory=list)
    """Float32 weights that training goes on from."""
    megabytes: list[float] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    ever: list[int] = field(default_factory=list)

    def look(self, store: Store, requests: int) -> None:
        """Measure; SQLite's log of writes, which comes and goes, is left out."""
        found = [path for path in store.directory.rglob("*") if path.is_file() and not path.name.startswith("osd.db-")]
        weights = [path for path in found if path.is_relative_to(store.directory / "weights")]
        self.requests.append(requests)
        self.masters.append(sum(path.name == MASTER for path in weights))
        self.files.append(len(weights) - self.masters[-1])
        self.megabytes.append(sum(path.stat().st_size for path in weights) / 1e6)
        self.kept.append(len(store.versions.list(deleted=False)))
        self.ever.append(len(store.versions.list()))


@pytest.mark.long
def test_the_disk_is_bounded_by_the_policy(tmp_path: Path) -> None:
    settings = load_settings(
        storage={"directory": tmp_path / "data", "flush_seconds": 0.2, "flush_requests": EVERY, "holdout": 0.1},
        serve={"max_batch": EVERY, "swap_poll_seconds": 0.05}, server={"learn": True},
        learn={"interval_requests": EVERY - 3, "replay_requests": 8, "epochs": 1},
        gate={"confidence": 0.51, "requests": 8},
        retention={"requests": 400, "compact_requests": 64, "every_seconds": 1.0, "versions": {"served": SERVED}},
        trainer={"device": "cpu"},
    )  # fmt: skip
    pair, disk = load_pair(TARGET, DRAFT), Disk()
    texts = islice(cycle([one for name in DOMAINS for one in prompts(name, 200)]), REQUESTS)
    with open_store(settings) as store, serving(pair, settings, store) as engine:
        schedule = TrainingSchedule(store, settings, threading.Event())
        asked = 0
        while batch := list(islice(texts, EVERY)):
            kept = sum(row.requests for row in store.samples.stats())
            wanted = [Request(encode(pair.tokenizer, text), 8) for text in batch]
            assert len(list(engine.run(wanted))) == len(batch)
            until(lambda kept=kept: sum(row.requests for row in store.samples.stats()) > kept, "they are kept")
            schedule.take_turn()
            asked += len(batch)
            disk.look(store, asked)
        runs = [run.state for run in store.runs.list(limit=10_000)]
    draw(disk, runs.count(RunState.PUBLISHED))
    settled = [files for files, requests in zip(disk.files, disk.requests, strict=True) if requests > SETTLED]
    files = len([path for path in DRAFT.iterdir() if path.is_file()]) + 2
    print(f"{runs.count(RunState.PUBLISHED)} published of {len(runs)} runs; files {min(settled)} to {max(settled)}")
    assert disk.ever[-1] > 10 * disk.kept[-1], "many came and went"
    assert max(disk.kept) <= 2 * (SERVED + 4)
    assert max(settled) <= max(disk.kept) * files
    assert max(disk.masters) <= 2, "the current version's and the newest one's"
    assert max(settled) - min(settled) <= 3 * files, "a version or two more or less, as candidates are rejected"


def draw(disk: Disk, published: int) -> None:
    """Draw what was measured, where somebody wants to see it."""
    if not PICTURE:
        return
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(disk.requests, disk.ever, label="versions ever")
    left.plot(disk.requests, disk.kept, label="with weights on the disk")
    left.set(xlabel="requests", ylabel="versions", title=f"{published} published", yscale="log")
    left.legend()
    right.plot(disk.requests, disk.files)
    right.set(xlabel="requests", ylabel="files of weights", title="files and megabytes of weights", ylim=(0, None))
    beside = right.twinx()
    beside.plot(disk.requests, disk.megabytes, color="C1")
    beside.set(ylabel="megabytes", ylim=(0, None))
    figure.savefig(PICTURE, dpi=120)
