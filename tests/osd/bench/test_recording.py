"""What recording costs: estimators on made ratios, and turns on a real engine and store."""

from __future__ import annotations

import random
import statistics

import pytest

from osd.bench import recording
from osd.bench.harness.watch import Watch
from osd.bench.plans import DecodePlan
from osd.bench.recording import ComparedTurns, RecordedTurn, RecordingCost, TurnPair, recording_cost, usual_seconds
from osd.engine.engine import Engine
from osd.recording.recorder import Recorder
from storage.settings import load_settings
from tests.support.models import prompts, random_pair


def test_turns_that_write_count_as_often_as_they_come() -> None:
    quiet = [ComparedTurns(ratio, 0.01) for ratio in (0.98, 0.99, 0.97, 0.0001)]
    found = RecordingCost(quiet=quiet, writing=[ComparedTurns(0.5, 0.06)])
    assert found.median("ratio")[0] == pytest.approx(0.8 * 0.975 + 0.2 * 0.5)
    assert found.median("wait")[0] == pytest.approx(0.8 * 0.01 + 0.2 * 0.06)
    even = RecordingCost(quiet=[ComparedTurns(ratio, 0.0) for ratio in (0.9, 1.0, 1.1)], seconds=1.0)
    assert even.as_dict()["recording_cost"] == pytest.approx(0.0)


def test_turns_are_compared_by_rounds_of_their_own_kinds() -> None:
    """The recorded turn has the dear rounds, and takes a tenth longer than such rounds take."""
    cheap, dear = (1, 0), (1, 3)
    without = RecordedTurn(4.0, 0.4, [(cheap, 1.0), (cheap, 1.0), (cheap, 1.0), (cheap, 1.0)])
    recorded = RecordedTurn(8.8, 1.76, [(cheap, 1.0), (cheap, 1.0), (dear, 3.4), (dear, 3.4)])
    assert usual_seconds([without, recorded]) == {cheap: 1.0, dear: pytest.approx(3.4)}
    found = TurnPair(without, recorded, wrote=False).compared({cheap: 1.0, dear: 3.0})
    assert found == (pytest.approx(1 / 1.1), pytest.approx(0.1))


def test_the_error_is_that_of_a_median() -> None:
    """Of 400 medians of 101 draws each; wild ones among them change nothing."""
    chance = random.Random(7)
    draws = [[chance.gauss(1, 0.1) if chance.random() < 0.95 else 50.0 for _ in range(101)] for _ in range(400)]
    pairs = [[ComparedTurns(ratio, ratio) for ratio in ratios] for ratios in draws]
    told = statistics.mean(RecordingCost(quiet=each).median("ratio")[1] for each in pairs)
    assert told == statistics.mean(RecordingCost(quiet=each).median("wait")[1] for each in pairs)
    assert told == pytest.approx(statistics.stdev(statistics.median(ratios) for ratios in draws), rel=0.15)


def test_everything_that_ends_is_kept_and_written_while_it_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorder hears of every request's end, also of those that end while nothing is recorded."""
    ended: list[str] = []
    heard: list[str] = []
    step, send = Engine.step, Recorder._send
    monkeypatch.setattr(
        Engine, "step", lambda self: [p for p in step(self) if not p.completion or not ended.append(p.request_id)]
    )
    monkeypatch.setattr(
        Recorder, "_send", lambda self, done: (heard.extend(each.request.id for each in done), send(self, done))[1]
    )
    monkeypatch.setattr(recording, "WARM", 1)
    settings = load_settings(serve={"max_length": 64}, storage={"flush_requests": 2})
    asked = prompts(5, seed=3, longest=8)
    plan = DecodePlan(max_tokens=6, recorded=8)
    found = recording_cost(plan, random_pair("llama"), asked, settings, 2, Watch())
    assert len(found.quiet) + len(found.writing) == 8 and found.writing, "requests ended, so it was asked to write"
    assert found.seconds > found.loop > 0 and found.beside > 0 and -1 < found.median("wait")[0] < 1
    assert len(heard) == len(set(heard)) and set(heard) <= set(ended)
    assert len(set(ended) - set(heard)) <= 2 * recording.RECORDED, "at most what ended in the last turn"
