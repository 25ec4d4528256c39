"""How many answers a draft may still need, by the line of its published versions."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from storage.insights.outlook import FAR, answers_to_go, gate_line
from storage.records import RunState
from storage.store import Store
from tests.storage.make import add_root, claim, samples, stage

EXACT = [(answers, 0.1 * math.log(answers)) for answers in (2, 4, 8, 16)]
"""Acceptance that rises by the same with every doubling of the answers."""


def test_a_line_over_the_logarithm_of_answers_is_carried_on() -> None:
    assert answers_to_go(EXACT, 0.1 * math.log(64)) == 48
    bent = [(1, 0.9), *EXACT[-1:], (32, 0.35), (64, 0.42), (128, 0.49), (256, 0.56)]
    assert answers_to_go(bent, 0.63) == pytest.approx(256, rel=0.05), "older ones count no more"


@pytest.mark.parametrize(
    "line",
    [
        [], EXACT[:2], [(2, 0.5), (4, 0.4), (8, 0.3), (16, 0.2)], [*EXACT, (32, 0.2)], [(2, 0.2), (4, 0.2), (8, 0.2)],
        [(2, 0.9), (4, 0.9), (8, 0.1), (16, 0.11), (32, 0.12)],
    ],
    ids=["none", "two", "falling", "fell", "level", "rises-below"],
)  # fmt: skip
def test_nothing_is_said_without_three_versions_that_rise(line: list[tuple[int, float]]) -> None:
    assert answers_to_go(line, 0.95) is None


def test_nothing_is_said_of_what_is_reached_or_too_far_away() -> None:
    assert answers_to_go(EXACT, 0.1 * math.log(16)) is None
    assert answers_to_go(EXACT, 0.1 * math.log(15 * FAR)) is not None
    assert answers_to_go(EXACT, 0.1 * math.log(17 * FAR)) is None


def learn(store: Store, parent: str, first: int, requests: int, after: float, *, better: bool = True) -> str:
    """Let a run learn from so many requests, and the gate measure its version."""
    store.samples.add([samples(number) for number in range(first, first + requests)])
    run = claim(store)
    made = stage(store, parent, after, run)
    if better:
        store.versions.publish(made.id, {"after": after}, run=run)
    else:
        store.versions.reject(made.id, {"after": after})
    store.runs.finish(run, RunState.PUBLISHED if better else RunState.REJECTED, made.id)
    return made.id


def test_a_version_has_learned_from_the_requests_of_all_runs_that_ended_before(keep_all: Store, tmp_path: Path) -> None:
    root = add_root(keep_all, tmp_path / "model")
    assert gate_line(keep_all, "default") == []
    first = learn(keep_all, root, 0, 4, 0.2)
    learn(keep_all, first, 4, 3, 0.1, better=False)
    second = learn(keep_all, first, 7, 5, 0.3)
    assert gate_line(keep_all, "default") == [(4, 0.2), (12, 0.3)]
    keep_all.versions.rollback("default", "it was worse", of=second)
    assert gate_line(keep_all, "default") == [(4, 0.2)]
