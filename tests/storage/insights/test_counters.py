"""Answers from counters: places, before and after a version, costs, runs; over both databases."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from storage.errors import BadInput, ModelFileDamaged, UnknownVersion
from storage.insights.cost import fit, plain_round
from storage.insights.service import Answers
from storage.outcomes.outcome_window import Window
from storage.records import RunState
from storage.sql.spans import DAY, HOUR
from storage.store import Store
from storage.versions.feature_kinds import ModelSize, model_size
from tests.storage.make import add_root, claim, outcome, stage, write_weights

DATABASES = True  # see conftest.py

BEGAN = 20_000 * DAY + 7 * HOUR


def _second(store: Store, root: str) -> str:
    made = stage(store, root, 1.0)
    return made.id


def test_places_and_their_rates(store: Store) -> None:
    store.outcomes.add([outcome(route="sql", positions=((10, 8, 2), (9, 4, 3)))], "a")
    store.outcomes.add([outcome(route="chat", positions=((10, 2, 8),))], "b")
    first, second = Answers(store).positions()
    assert (first.drafted, first.accepted, first.refused, first.wasted) == (20, 10, 10, 0)
    assert (second.alpha, second.draft_acceptance_rate, second.wasted) == (4 / 7, 4 / 9, 2)
    by_route = Answers(store).positions(by=["route"])
    assert [(row.by["route"], row.position, row.accepted) for row in by_route] == [
        ("chat", 0, 2), ("sql", 0, 8), ("sql", 1, 4),
    ]  # fmt: skip
    assert Answers(store).positions(Window(route="chat"))[0].accepted == 2
    assert Answers(store).positions(Window(since=2_000_000)) == []
    assert second.as_dict()["wasted"] == 2
    with pytest.raises(BadInput, match="'tenant'"):
        Answers(store).positions(by=["tenant"])


def _stream(store: Store, version: str, begin: int, alphas: dict[str, float], hours: int = 24) -> None:
    """An hour's outcome a route, each 100 judged tokens more or less, with noise that is fixed."""
    for hour in range(hours):
        for route, alpha in alphas.items():
            hits = round(100 * alpha) + (hour * 7) % 5 - 2
            store.outcomes.add(
                [outcome(draft_version=version, route=route, finished_at=float(begin + hour * HOUR), accepted=hits,
                         rejections=100 - hits, drafted=120)], "a",
            )  # fmt: skip


def test_before_and_after_a_version(store: Store, tmp_path: Path) -> None:
    root = add_root(store, tmp_path / "a")
    version = _second(store, root)
    _stream(store, root, BEGAN - DAY, {"sql": 0.5, "chat": 0.6})
    _stream(store, root, BEGAN - 3 * DAY, {"sql": 0.1}, hours=2)  # outside the window
    _stream(store, root, BEGAN, {"sql": 0.2}, hours=3)  # a server that lags behind
    _stream(store, version, BEGAN, {"sql": 0.7, "chat": 0.6})
    everywhere, chat, sql = Answers(store).change(version)
    assert [row.route for row in (everywhere, chat, sql)] == ["*", "chat", "sql"]
    assert sql.began == BEGAN
    assert (sql.before, sql.after) == (pytest.approx(0.5, abs=0.01), pytest.approx(0.7, abs=0.01))
    assert sql.low is not None and sql.high is not None and sql.low < sql.difference < sql.high  # type: ignore[operator]
    assert (sql.verdict, chat.verdict, everywhere.verdict) == ("better", "unclear", "better")
    assert (sql.requests_before, sql.requests_after) == (24, 24)
    assert everywhere.difference == pytest.approx(0.1, abs=0.01)


def test_a_version_that_never_served_changed_nothing(store: Store, tmp_path: Path) -> None:
    root = add_root(store, tmp_path / "a")
    assert Answers(store).change(root) == []
    with pytest.raises(UnknownVersion):
        Answers(store).change("nobody")
    for wrong in ({"window": 60.0}, {"confidence": 1.0}):
        with pytest.raises(BadInput):
            Answers(store).change(root, **wrong)


def test_what_a_first_version_changed_has_no_before(store: Store, tmp_path: Path) -> None:
    root = add_root(store, tmp_path / "a")
    _stream(store, root, BEGAN, {"sql": 0.5})
    _, sql = Answers(store).change(root)
    assert (sql.before, sql.difference, sql.low, sql.verdict) == (None, None, None, "unclear")


def test_costs_by_hand(store: Store, tmp_path: Path) -> None:
    """Eight numbers in the draft, a thousand in the target; b(0) measured at 5 ms."""
    root = add_root(store, tmp_path / "a")
    store.outcomes.add([outcome(draft_version=root, draft_ms=100.0, verify_ms=200.0)], "a")
    store.outcomes.add([outcome(draft_version="plain", rounds=200, drafted=0, accepted=0, verify_ms=1000.0)], "a")
    run = _run(store, root)
    answer = Answers(store).cost(target=ModelSize(1000, 2000))
    (row,) = answer.rows
    assert answer.plain_round is not None and (answer.plain_round.how, answer.plain_round.ms) == ("measured", 5.0)
    assert row.flops is not None and row.bytes is not None
    assert (row.flops.draft, row.flops.target) == (2 * 8 * 40, 2 * 1000 * 50)
    assert (row.flops.training, row.flops.without) == (6 * 8 * 30, 2 * 1000 * 40)
    assert (row.bytes.draft, row.bytes.target, row.bytes.training) == (32 * 40, 2000 * 10, 32 * 3)
    assert row.bytes.saved == 2000 * 40 - 32 * 40 - 2000 * 10 - 32 * 3
    assert (row.decode_seconds, row.without_seconds) == (0.3, 0.2)
    assert row.saved_seconds == pytest.approx(-0.1)
    assert row.net_gain_seconds == pytest.approx(-0.1 - run)
    assert row.update_share == pytest.approx(run / 0.3)
    assert row.as_dict()["flops_saved"] == row.flops.saved
    assert Answers(store).cost().rows[0].flops is None, "the target's size is not known"


def _run(store: Store, root: str) -> float:
    """A run that trained on 30 positions in three steps; the seconds that it took."""
    from tests.storage.make import samples

    store.samples.add([samples(number) for number in range(4)])
    run = claim(store)
    facts = {"positions": 30, "steps": 3, "seconds": 0.5, "evidence": {"difference": 0.02}}
    done = store.runs.finish(run, RunState.REJECTED, result=facts)
    assert done.finished_at is not None
    return done.finished_at - done.started_at


def test_runs_and_their_totals(store: Store, tmp_path: Path) -> None:
    root = add_root(store, tmp_path / "a")
    seconds = _run(store, root)
    (row,) = Answers(store).runs()
    assert (row.state, row.positions, row.steps, row.training_seconds, row.gain) == ("rejected", 30, 3, 0.5, 0.02)
    assert row.seconds == pytest.approx(seconds)
    assert row.requests >= 1
    (total,) = Answers(store).run_totals()
    assert (total.draft, total.runs, total.rejected, total.positions) == ("default", 1, 1, 30)
    assert Answers(store).runs(Window(until=1.0)) == Answers(store).run_totals(Window(draft="other")) == []


def test_b0_is_not_above_what_rounds_take_drafts_included(store: Store) -> None:
    """Requests without a draft of a cold start, and many of later: no speed-up follows from that."""
    store.outcomes.add([outcome(rounds=200, drafted=0, accepted=0, verify_ms=2600.0)], "a")
    store.outcomes.add([outcome(rounds=800, drafted=80, verify_ms=7400.0)], "a")
    found = plain_round(store.db)
    assert found is not None and (found.how, found.ms) == ("measured", 10.0)


def test_b0_of_a_target_leaves_out_what_was_served_under_others(store: Store, tmp_path: Path) -> None:
    for value, (target, ms) in enumerate((("a" * 64, 2600.0), ("b" * 64, 5200.0))):
        write_weights(tmp_path / target, value)
        version = store.versions.register_root("default", tmp_path / target, target=target).id
        store.outcomes.add([outcome(draft_version=version, rounds=200, drafted=0, accepted=0, verify_ms=ms)], "w")
    found = [plain_round(store.db, target * 64) for target in "ab"]
    assert [one and one.ms for one in found] == [13.0, 26.0]


def test_b0_is_fitted_where_every_round_drafts(store: Store) -> None:
    """verify_ms = 7 a round + 0.5 a drafted token, exactly."""
    lines = [outcome(rounds=n, drafted=n * g, verify_ms=7.0 * n + 0.5 * n * g) for n, g in ((10, 2), (20, 4), (5, 8))]
    store.outcomes.add(lines, "a")
    found = plain_round(store.db)
    assert found is not None
    assert (found.how, found.rounds) == ("fitted", 35)
    assert found.ms == pytest.approx(7.0)


def test_b0_is_not_known_from_drafts_of_one_length(store: Store) -> None:
    assert plain_round(store.db) is None
    store.outcomes.add([outcome(), outcome(rounds=20, drafted=80)], "a")
    assert plain_round(store.db) is None
    assert fit(10, 20, 50, -5, 3) is None, "a time below nothing"


def test_sizes_are_those_of_the_tensors(tmp_path: Path) -> None:
    save_file({"a": np.zeros((3, 5), np.float16), "b": np.zeros(4, np.float32)}, tmp_path / "one.safetensors")
    save_file({"c": np.zeros((), np.float32)}, tmp_path / "two.safetensors")
    assert model_size(tmp_path) == ModelSize(20, 30 + 16 + 4)
    assert model_size(tmp_path / "nothing") is None
    (tmp_path / "one.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0not json")
    with pytest.raises(ModelFileDamaged, match=r"one\.safetensors"):
        model_size(tmp_path)
