"""An interval that chooses itself: a simulated learner over a real store; acceptance rises, is flat, and falls."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from storage import records
from storage.records import RunState, TrainingRun
from storage.routes.proposals import ProposalKind
from storage.runs import BEGAN, ClaimTerms
from storage.settings import Settings, load_settings
from storage.store import Store, open_store
from storage.versions.heirs import begin_line, offer_heir
from tests.storage.conftest import SHARED_MEMORY, Clock
from tests.storage.make import add_root, outcome, samples, write_weights
from tests.trainer.conftest import Traffic
from trainer.interval import _left, claim_terms, head_interval
from trainer.worker.schedule import TrainingSchedule

LEAST, MOST = 8, 128
DECODING, TRAINING = 2.0, 2.0
"""Seconds of a request, and of a run."""
LOW, HIGH, LEARNS = 0.3, 0.8, 1 / 40
"""Acceptance untaught and taught, and the share of what is missing that a request teaches."""


@dataclass
class Simulation:
    """Requests come one after another, eight between two looks; training closes a share of what is missing."""

    store: Store
    settings: Settings
    clock: Clock
    served: int = 0
    drafted: int = 80
    """Tokens a request; half of them are judged."""
    changed: int = 0
    """Requests served before the traffic changed: they teach nothing about it."""
    missing: float = 1.0
    """Of what serves; the line of training is ahead of it until the gate lets a candidate through."""
    line: float = 1.0
    line_name: str = "default"
    target: str | None = None
    runs: list[TrainingRun] = field(default_factory=list)
    at: list[int] = field(default_factory=list)
    """Requests served when each run began."""
    chance: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))

    def serve(self, requests: int) -> list[str]:
        """Serve so many, and train when that is due; return why runs began."""
        before = len(self.runs)
        for _ in range(requests // LEAST):
            self._serve()
            terms = claim_terms(self.store, self.settings, self.line_name)
            if run := self.store.runs.claim(self.line_name, "me", terms):
                self._train(run)
        return [run.settings[BEGAN]["why"] for run in self.runs[before:]]

    def _serve(self) -> None:
        version, made, kept = self.store.versions.current(self.line_name).id, [], []
        for _ in range(LEAST):
            self.served, self.clock.seconds = self.served + 1, self.clock.seconds + DECODING
            judged = self.drafted // 2
            accepted = int(self.chance.binomial(judged, HIGH - (HIGH - LOW) * self.missing))
            made.append(outcome(
                request_id=f"r{self.served}", draft_version=version, finished_at=self.clock(), rounds=20,
                drafted=self.drafted, accepted=accepted, rejections=judged - accepted, draft_ms=0.0,
                verify_ms=1000 * DECODING,
            ))  # fmt: skip
            at = self.clock()
            kept.append(samples(self.served, created_at=at, draft_version=version, target=self.target))
        self.store.outcomes.add(made, "server")
        self.store.samples.add(kept)

    def _train(self, run: TrainingRun) -> None:
        self.clock.seconds += TRAINING
        self.line *= math.exp(-LEARNS * sum(int(request[1:]) > self.changed for request in run.request_ids))
        noise = float(self.chance.normal(0, 0.002))
        facts = {"difference": (HIGH - LOW) * (self.missing - self.line) + noise}
        version = self.store.versions.stage(
            self.line_name, run.parent, "full", lambda folder: write_weights(folder, self.line), run_id=run.id
        )
        better = facts["difference"] > 0.004
        if better:
            self.store.versions.publish(version.id, facts, run=run)
            self.missing = self.line
        else:
            self.store.versions.reject(version.id, facts)
        state = RunState.PUBLISHED if better else RunState.REJECTED
        self.runs.append(self.store.runs.finish(run, state, version.id, {"evidence": facts}))
        self.at.append(self.served)

    def move(self, folder: Path) -> None:
        """Serve a successor from now on, and half of what was learned is missing of it."""
        self.target, before = f"{len(self.store.targets.served()):08d}".ljust(64, "0"), self.target
        self.store.targets.arrive(self.target, "step", {"architecture": "Llama", "vocabulary": "v"})
        if before:
            self.store.targets.succeed(before, self.target)
        self.line_name = begin_line(self.store, "default", folder, self.target).draft
        if heir := offer_heir(self.store, self.line_name):
            self.store.versions.settle_heir(heir.id, {}, good=True)
        self.line = self.missing = (1 + self.missing) / 2


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Iterator[Simulation]:
    clock = Clock(1_800_000_000.0)
    monkeypatch.setattr(records, "now", clock)
    with TemporaryDirectory(dir=SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None) as name:
        settings = load_settings(
            storage={"directory": Path(name) / "data", "holdout": 0.0}, gate={"min_requests": LEAST},
            learn={"interval_requests": "auto", "max_requests": MOST},
        )  # fmt: skip
        with open_store(settings) as store:
            add_root(store, Path(name) / "model")
            yield Simulation(store, settings, clock)


def test_runs_are_many_while_they_pay_few_while_they_do_not_and_many_after_a_change(stream: Simulation) -> None:
    rising = stream.serve(160)
    assert rising[0] == "first" and set(rising[1:]) == {"pays"} and len(rising) >= 6
    assert stream.missing < 0.1
    stream.serve(160)
    flat = stream.serve(400)
    assert len(flat) <= 400 // MOST + 2 and "drift" not in flat
    stream.changed, stream.missing, stream.line = stream.served, 1.0, 1.0
    after = stream.serve(160)
    seen = after.index("drift")
    assert len(after) > 2 * len(flat) and after[seen:][:3] == ["drift", "first", "pays"]
    assert stream.at[len(stream.at) - len(after) + seen] - stream.changed <= 40, "within a window of the watch"
    assert stream.missing < 0.2
    gaps = np.diff(stream.at)
    assert gaps.min() >= LEAST and gaps.max() <= MOST + LEAST


def test_runs_that_cost_more_are_fewer(stream: Simulation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.trainer.test_interval.TRAINING", 40.0)
    stream.serve(160)
    assert len(stream.runs) <= 5, "the square root of a twentieth"


def test_a_draft_that_drafts_nothing_is_trained_as_seldom_as_may_be(stream: Simulation) -> None:
    stream.drafted = 0
    stream.serve(LEAST + 2 * MOST)
    assert [run.settings[BEGAN]["why"] for run in stream.runs] == ["first", "interval", "interval"]


def test_drift_that_discovery_found_begins_a_run(stream: Simulation) -> None:
    stream.drafted = 0
    assert stream.serve(16) == ["first"]
    stream.store.proposals.add(ProposalKind.DRIFT, {"routes": ["other"]})
    assert stream.serve(8) == []
    stream.store.proposals.add(ProposalKind.DRIFT, {"routes": ["default"]})
    assert stream.serve(16) == ["drift", "first"]
    assert "proposal 2" in stream.runs[-2].settings[BEGAN]["words"]


def test_a_head_follows_its_draft(stream: Simulation) -> None:
    assert head_interval(stream.store, stream.settings, "default") == LEAST
    stream.drafted = 0
    stream.serve(LEAST + MOST)
    assert head_interval(stream.store, stream.settings, "default") == MOST


@pytest.mark.parametrize(("step", "cost", "runs"), [(64, 2.0, (1, 6)), (64, 200.0, (0, 0)), (16, 2.0, (0, 2))])
def test_a_run_in_a_step_saves_more_than_it_takes_until_the_target_moves(
    stream: Simulation, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, step: int, cost: float, runs: tuple[int, int]
) -> None:
    write_weights(tmp_path, 0.0)
    monkeypatch.setattr("tests.trainer.test_interval.TRAINING", cost)
    stream.settings = stream.settings.changed(learn={"follow": "successor"})
    begun = []
    for _ in range(8):
        stream.move(tmp_path)
        begun.append(stream.serve(step))
    assert begun[0][0] == "first" and not any("first" in later for later in begun[1:])
    for later in begun[3:]:
        assert runs[0] <= len(later) <= runs[1] and set(later) <= {"pays"}
    assert stream.store.targets.left() == {one.digest for one in stream.store.targets.served()} - {stream.target}
    assert stream.missing < 0.9 or not runs[0]
    stream.store.targets.arrive("0" * 64, "step")  # back to the first one: it is served, and learned about
    assert "0" * 64 not in stream.store.targets.left()


def test_what_is_learned_lasts_as_long_as_targets_are_alike(stream: Simulation, tmp_path: Path) -> None:
    write_weights(tmp_path, 0.0)
    for _ in range(2):
        stream.move(tmp_path)
    first, second = (one.digest for one in stream.store.targets.served())

    def left(*tokens: int) -> float:
        return _left(stream.store, stream.line_name, [first], tokens)

    assert left(300) == 300 and left(300, 400) == 100 and left(500, 400, 400) == 100
    for divergence, targets in ((0.25, 1.0), (0.5, 0.0), (0.0, 19.0)):
        stream.store.targets.note_divergence(second, first, {"default": divergence})
        assert left(300, 400) == pytest.approx(100 + targets * 400)


def test_only_the_newest_of_targets_that_follow_each_other_is_learned_about(
    stream: Simulation, never: threading.Event, tmp_path: Path
) -> None:
    write_weights(tmp_path, 0.0)
    for _ in range(3):
        stream.move(tmp_path)
    follows = stream.settings.changed(learn={"follow": "successor"})
    assert TrainingSchedule(stream.store, follows, never).drafts() == [stream.line_name]
    assert len(TrainingSchedule(stream.store, stream.settings, never).drafts()) == 3


def test_a_number_asks_nothing_else(stream: Simulation) -> None:
    settings = stream.settings.changed(learn={"interval_requests": 8})
    terms = ClaimTerms(8, 60.0, 60.0, MOST, settings.learn.model_dump())
    assert claim_terms(stream.store, settings, "default") == terms
    stream.settings = settings
    assert stream.serve(64) == ["interval"] * 8
    assert {len(run.request_ids) for run in stream.runs} == {8}


def test_serving_comes_first_where_the_interval_chooses_itself(
    drafted: Store, settings: Settings, traffic: Traffic, never: threading.Event
) -> None:
    auto = settings.changed(learn={"interval_requests": "auto"}, trainer={"spare_cpu": 1.0})
    schedule = TrainingSchedule(drafted, auto, never)
    traffic(6, held_out=False)
    (run,) = schedule.take_turn()
    assert schedule.settings.trainer.spare and not settings.trainer.spare
    assert run.settings[BEGAN] == {"why": "first", "words": "no run has been judged yet"}
