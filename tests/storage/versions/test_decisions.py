"""Decisions of people hold: nothing replaces what they chose until they lift it, and each leaves its line."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from storage.errors import BadInput, DraftHeld, NotFound, UnknownDraft, UnknownVersion, WeightsDamaged, WrongState
from storage.records import RunState, TrainingRun, VersionState
from storage.store import Store
from storage.versions.canaries import CanaryState
from storage.versions.draft_choices import HoldKind
from tests.storage import make
from tests.storage.access.test_workers import worker
from tests.storage.make import add_root, publish, samples, stage

PLACED = True  # see conftest.py


@pytest.fixture
def learning(keep_all: Store, tmp_path: Path) -> Store:
    """A draft with numbers 0, 1 and 2, of which the last is current, and requests that wait."""
    add_root(keep_all, tmp_path / "model")
    keep_all.samples.add([samples(number, m=1) for number in range(20)])
    for value in (1.0, 2.0):
        publish(keep_all, value)
    return keep_all


claim = partial(make.claim, max_requests=1)


def numbers(store: Store) -> tuple[int, int]:
    """The current version's number, and the previous one's."""
    return store.versions.current("default").number, store.versions.get("previous").number


@pytest.mark.parametrize(
    ("decide", "kind", "number"),
    [
        (lambda store: store.decisions.pin("default:previous"), HoldKind.PINNED, 1),
        (lambda store: store.decisions.freeze("default"), HoldKind.FROZEN, 2),
        (lambda store: store.decisions.promote(store.versions.list("default")[0].id), HoldKind.FROZEN, 0),
        (lambda store: store.decisions.rollback("default", "it was rude"), HoldKind.FROZEN, 1),
    ],
    ids=["pin", "freeze", "promote", "rollback"],
)
def test_nothing_replaces_what_a_person_chose_until_it_is_lifted(
    learning: Store, decide: Callable[[Store], object], kind: HoldKind, number: int
) -> None:
    run = claim(learning)
    candidate = stage(learning, run.parent, 3.0, run)
    decide(learning)
    hold = learning.decisions.holds()["default"]
    chosen = learning.versions.current("default")
    assert (hold.kind, hold.version, chosen.number) == (kind, chosen.id, number)
    refused: list[Callable[[], object]] = [
        lambda: learning.versions.publish(candidate.id, {}, run=run),
        lambda: learning.runs.heartbeat(run, 60.0),
        lambda: claim_again(learning, run),
    ]
    for attempt in refused:
        with pytest.raises(DraftHeld, match=f"{kind.value} at {chosen.id}.*osd drafts resume default"):
            attempt()
    assert learning.versions.current("default") == chosen
    lifted = learning.decisions.resume("default")
    assert lifted == hold and learning.decisions.resume("default") is None and learning.decisions.holds() == {}
    assert publish(learning, 4.0).parent == chosen.id, "it learns on, from what was chosen"


def claim_again(store: Store, run: TrainingRun) -> None:
    store.runs.finish(run, RunState.FAILED)
    claim(store)


def test_each_decision_leaves_a_line_with_what_was_before_and_after(learning: Store) -> None:
    first, second = (version.id for version in learning.versions.list("default")[1:])
    learning.decisions.pin(first)
    learning.decisions.resume("default")
    learning.decisions.rollback("default", "rude")
    learning.decisions.freeze("default", "before the fair")
    learning.decisions.name(first, "good")
    learning.decisions.unname("default", "good")
    lines = list(reversed(learning.trail.history(action="drafts")))
    assert [line.action.split()[1] for line in lines] == ["pin", "resume", "rollback", "freeze", "alias", "alias"]
    pinned, resumed, back = lines[:3]
    assert (pinned.before, pinned.after) == ({"current": second, "hold": None}, {"current": first, "hold": "pinned"})
    assert (resumed.before["hold"], resumed.after["hold"]) == ("pinned", None)
    assert (back.before["current"], back.after["left"], back.after["hold"]) == (first, first, "frozen")


def test_what_a_person_chose_is_for_all_servers_at_once(learning: Store) -> None:
    """Two servers, so that a version which comes by itself is tried by one of them first."""
    first, second = learning.versions.list("default")[1:]
    for name in ("a", "b"):
        learning.servers.beat(worker(name, second.created_at))
    stages = [learning.canaries.stage("default", name) for name in ("a", "b", "a", "b")]
    tried = learning.canaries.list()[0]
    assert tried.state is CanaryState.WATCHING and {stage.version.id for stage in stages[2:]} != {second.id}
    with pytest.raises(WrongState, match="tried by one server"):
        learning.decisions.freeze("default")
    learning.decisions.pin(first.id)
    for name in ("a", "b", "a", "b"):
        assert learning.canaries.stage("default", name).version.id == first.id
    assert learning.canaries.list()[0].state is not CanaryState.WATCHING
    learning.decisions.pin(second.id)
    assert {learning.canaries.stage("default", name).version.id for name in ("a", "b")} == {second.id}


def test_damaged_weights_are_left_even_where_they_are_pinned(learning: Store) -> None:
    second = learning.versions.current("default")
    learning.decisions.pin(second.id)
    learning.versions.quarantine(second.id, "a flipped bit")
    assert learning.versions.current("default").number == 1
    assert learning.decisions.holds()["default"].kind is HoldKind.PINNED, "still nothing is trained"


def test_names_stand_for_versions(learning: Store) -> None:
    first, second = (version.id for version in learning.versions.list("default")[1:])
    assert numbers(learning) == (2, 1) and learning.versions.get("current").id == second
    learning.decisions.name("previous", "good")
    assert [learning.versions.get(name).id for name in ("good", "default:good")] == [first, first]
    assert learning.decisions.aliases() == {first: ["good"]}
    learning.decisions.name("current", "good")
    assert learning.decisions.aliases() == {second: ["good"]}, "a name is one version's"
    learning.decisions.rollback("default", "rude", to="previous")
    assert numbers(learning) == (1, 2) and learning.versions.get("good").state is VersionState.ROLLED_BACK
    assert learning.decisions.unname("default", "good") == second


def test_what_cannot_be_decided_is_said(learning: Store) -> None:
    cases: list[tuple[type[Exception], str, Callable[[], object]]] = [
        (UnknownVersion, "no draft version 'good'", lambda: learning.decisions.pin("good")),
        (UnknownVersion, "nobody:current", lambda: learning.decisions.promote("nobody:current")),
        (UnknownDraft, "known: default", lambda: learning.decisions.freeze("nobody")),
        (UnknownDraft, "known: default", lambda: learning.decisions.resume("nobody")),
        (BadInput, "every draft has", lambda: learning.decisions.name("current", "previous")),
        (BadInput, "cannot name a version", lambda: learning.decisions.name("current", "a b")),
        (NotFound, "called 'good'", lambda: learning.decisions.unname("default", "good")),
        (WrongState, "another sound version", lambda: learning.decisions.rollback("default", "", to="current")),
    ]
    for kind, words, attempt in cases:
        with pytest.raises(kind, match=words):
            attempt()
    assert learning.trail.history() == [] and learning.decisions.holds() == {}


@pytest.mark.local
def test_damaged_weights_are_not_pinned(learning: Store) -> None:
    first = learning.versions.list("default")[1]
    (learning.versions.folder(first) / "model.safetensors").write_bytes(b"")
    with pytest.raises(WeightsDamaged):
        learning.decisions.pin(first.id)
    assert learning.decisions.holds() == {} and numbers(learning) == (2, 1)
