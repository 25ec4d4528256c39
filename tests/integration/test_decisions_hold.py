"""A decision holds: pinned, frozen and taken back, three drafts stay where they are in ten minutes of traffic with a
trainer at work on a fourth; resumed, all of them learn on.

``OSD_HOLD_SECONDS`` is how long the traffic lasts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

import pytest

from osd.demo import DRAFT, TARGET
from osd.demo.prompts import DOMAINS, prompts
from osd.demo.runner.process import WorkerProcess, save_settings, worker_beside
from osd.engine.engine import Engine
from osd.engine.session import serving
from osd.models.pair import Pair, load_pair
from osd.prompts import encode
from storage.records import Request, Route, RunState
from storage.settings import load_settings
from storage.store import Store, open_store

HELD, FREE = ("pinned", "frozen", "taken-back"), "default"
SECONDS = float(os.environ.get("OSD_HOLD_SECONDS", 600))
PATIENCE = 240.0


@dataclass
class Traffic:
    """Requests to all drafts by turns, with a trainer beside."""

    pair: Pair
    store: Store
    engine: Engine
    trainer: WorkerProcess
    requests: int = 0
    texts: Iterator[str] = field(default_factory=lambda: cycle([one for name in DOMAINS for one in prompts(name, 200)]))

    def serve(self) -> None:
        """Two requests of each draft at once."""
        self.trainer.require_alive()
        wanted = [Request(encode(self.pair.tokenizer, next(self.texts)), 16, route=name) for name in (*HELD, FREE) * 2]
        self.requests += len(list(self.engine.run(wanted)))

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Serve until something holds."""
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, f"never: {what}"
            self.serve()

    def current(self) -> dict[str, str]:
        """Return the version that should serve, by draft."""
        return {name: self.store.versions.current(name).id for name in (*HELD, FREE)}

    def loaded(self) -> dict[str, str]:
        """Return the version that drafts in the engine, by draft."""
        return {name: one.version for name, one in self.engine.pool.loaded_drafts.items()}

    def published(self, name: str) -> int:
        """Return how many versions of a draft were published."""
        return sum(run.state is RunState.PUBLISHED for run in self.store.runs.list(name, limit=10_000))


@contextmanager
def traffic(folder: Path) -> Iterator[Traffic]:
    settings = load_settings(
        storage={"directory": folder / "data", "flush_seconds": 0.2, "flush_requests": 8},
        serve={"max_batch": 8, "swap_poll_seconds": 0.05, "threads": 1},
        learn={"interval_requests": 4, "max_age_seconds": 5.0, "replay_requests": 8, "epochs": 1},
        gate={"confidence": 0.51, "requests": 8}, trainer={"device": "cpu", "poll_seconds": 0.2},
    )  # fmt: skip
    pair = load_pair(TARGET, DRAFT)
    config = save_settings(settings, folder / "osd.toml")
    with open_store(settings) as store:
        for name in HELD:
            store.versions.register_root(name, DRAFT)
            store.routes.add(Route(name, name))
        with serving(pair, settings, store) as engine, worker_beside(config, folder / "trainer.log") as trainer:
            yield Traffic(pair, store, engine, trainer)


@pytest.mark.long
def test_nothing_replaces_what_people_decided_until_it_is_resumed(tmp_path: Path) -> None:
    with traffic(tmp_path) as stream:
        stream.until(lambda: all(stream.published(name) >= 2 for name in (*HELD, FREE)), "all of them learn")
        decisions, versions = stream.store.decisions, stream.store.versions
        decisions.pin(str(versions.current("pinned").parent))
        decisions.freeze("frozen")
        decisions.rollback("taken-back", "by hand")
        assert set(decisions.holds()) == set(HELD)
        decided = stream.current()
        began, free = time.monotonic(), stream.published(FREE)
        stream.until(lambda: all(stream.loaded()[name] == decided[name] for name in HELD), "the decisions are loaded")
        runs, since = {name: len(stream.store.runs.list(name, limit=10_000)) for name in HELD}, stream.requests
        while time.monotonic() - began < SECONDS:
            stream.serve()
            assert {name: stream.current()[name] for name in HELD} == {name: decided[name] for name in HELD}
            assert all(stream.loaded()[name] == decided[name] for name in HELD)
        served, learned = stream.requests - since, stream.published(FREE) - free
        assert {name: len(stream.store.runs.list(name, limit=10_000)) for name in HELD} == runs, "no run began"
        assert learned > 0, "the trainer was at work all the while"
        before = {name: stream.published(name) for name in HELD}
        for name in HELD:
            decisions.resume(name)
        stream.until(lambda: all(stream.published(name) > before[name] for name in HELD), "resumed, they learn on")
        stream.until(lambda: stream.loaded() == stream.current(), "and it serves")
        print(
            f"{served} requests in {SECONDS:.0f} s, {learned} versions of {FREE} published; resumed: {stream.current()}"
        )
