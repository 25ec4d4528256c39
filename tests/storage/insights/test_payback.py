"""What learning saved: the length of a round against its sum, and the account against one done by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.insights.runs import pay_backs
from storage.insights.statistics import saved_share, tokens_per_round
from storage.records import RunState
from storage.store import Store
from tests.storage.conftest import Clock
from tests.storage.make import add_root, claim, outcome, samples, stage


@given(st.floats(0, 1), st.integers(0, 12))
def test_the_length_of_a_round_is_a_sum_and_what_is_saved_its_slope(alpha: float, gamma: int) -> None:
    length = sum(alpha**i for i in range(gamma + 1))
    slope = sum(i * alpha ** (i - 1) for i in range(1, gamma + 1))
    assert tokens_per_round(alpha, gamma) == pytest.approx(length, rel=1e-6)
    if alpha < 0.999 or alpha == 1:  # between them 0 ÷ 0 comes near
        assert saved_share(alpha, gamma) == pytest.approx(slope / length, rel=1e-6, abs=1e-9)


def test_training_has_paid_for_itself_when_its_gains_have_saved_what_it_cost(
    store: Store, tmp_path: Path, clock: Clock
) -> None:
    root = add_root(store, tmp_path / "model")
    assert pay_backs(store) == []
    store.samples.add([samples(number) for number in range(4)])
    run = claim(store)
    clock.seconds += 10.0
    made = stage(store, root, 1.0, run)
    store.versions.publish(made.id, {"difference": 0.2}, run=run)
    store.runs.finish(run, RunState.PUBLISHED, made.id)
    (owed,) = pay_backs(store)
    assert (owed.draft, owed.cost_seconds, owed.learned_seconds, owed.pays_in_seconds) == ("default", 10.0, 0.0, None)

    def serve(version: str, seconds: float) -> None:
        clock.seconds += seconds
        facts = dict(rounds=100, drafted=100, accepted=80, rejections=20, draft_ms=0.0, verify_ms=1000 * seconds)
        store.outcomes.add([outcome(draft_version=version, finished_at=clock(), **facts)], "server")

    serve(root, 50.0)
    assert pay_backs(store)[0].learned_seconds == 0, "number 0 learned nothing"
    serve(made.id, 40.0)  # one token drafted a round: at 0.8 it brings 1.8, at 0.6 1.6
    (half,) = pay_backs(store)
    assert half.learned_seconds == pytest.approx(40 * (1.8 / 1.6 - 1)) and half.pays_in_seconds is None
    clock.seconds += 3600
    serve(made.id, 30.0)  # the run is more than an hour ago
    (later,) = pay_backs(store)
    assert later.pays_in_seconds == pytest.approx((10 - 8.75) / (3.75 / 3600))
    serve(made.id, 11.0)
    assert pay_backs(store)[0].pays_in_seconds == 0
