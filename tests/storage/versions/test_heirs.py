"""Successors and heirs: what was learned about an earlier target is offered, judged, and found when it is forgotten."""

from __future__ import annotations

import random
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import pytest

from storage.errors import BadInput, NotFound
from storage.files.places import LocalFolder
from storage.records import RunState, TrainingRun, VersionState
from storage.sql.ledger import HEIR_OF, get_row
from storage.store import Store
from storage.versions.forks import fork
from storage.versions.heirs import begin_line, offer_heir, waiting_heir
from storage.versions.lineage import learned_from
from tests.storage.make import claim, samples, stage, write_weights

A, B, C = (letter * 64 for letter in "abc")
LLAMA = {"architecture": "LlamaForCausalLM", "vocabulary": "v"}


def arrive(store: Store, tmp_path: Path, target: str, **facts: str) -> str:
    """A target comes and begins the draft's line with the same number 0 as all others; the line."""
    store.targets.arrive(target, target[:3], {**LLAMA, **facts})
    write_weights(tmp_path / "draft", 1.0)
    return store.versions.register_root("default", tmp_path / "draft", target=target).draft


def publish(store: Store, line: str, value: float) -> str:
    staged = store.versions.stage(
        line, store.versions.current(line).id, "full", lambda folder: write_weights(folder, value)
    )
    return store.versions.promote(staged.id).id


def test_a_successors_line_is_offered_what_its_predecessors_learned(store: Store, tmp_path: Path) -> None:
    learned = publish(store, arrive(store, tmp_path, A), 2.0)
    line = arrive(store, tmp_path, B)
    assert offer_heir(store, line) is None  # nobody said that it is a successor
    store.targets.succeed(A, B)
    heir = offer_heir(store, line)
    assert heir is not None and heir.state is VersionState.CANDIDATE and heir.evidence[HEIR_OF] == learned
    assert heir.digest == store.versions.get(learned).digest
    assert store.versions.current("default", B).number == 0, "it serves before it was judged"
    assert offer_heir(store, line) == waiting_heir(store, line) == heir
    assert store.versions.settle_heir(heir.id, {"after": 0.5}, good=True).id == heir.id
    kept = store.versions.get(heir.id)
    assert kept.state is VersionState.READY and kept.evidence["after"] == 0.5 and kept.evidence[HEIR_OF] == learned
    assert store.versions.settle_heir(heir.id, {}, good=False).id == heir.id, "it was settled"
    assert offer_heir(store, line) is None
    assert store.versions.rollback(line, "no").number == 0 and store.versions.current("default", A).id == learned


def test_what_a_late_run_published_about_the_one_before_is_inherited(store: Store, tmp_path: Path) -> None:
    """Its target moved while it ran."""
    line = arrive(store, tmp_path, A)
    publish(store, line, 2.0)
    after = arrive(store, tmp_path, B)
    store.targets.succeed(A, B)
    heir = offer_heir(store, after)
    assert heir is not None
    store.versions.settle_heir(heir.id, {}, good=True)
    late = publish(store, line, 3.0)
    last = arrive(store, tmp_path, C)
    store.targets.succeed(B, C)
    found = offer_heir(store, last)
    assert found is not None and found.evidence[HEIR_OF] == late


@pytest.mark.parametrize("steps", [1, 3, 6])
def test_what_was_trained_before_heirs_came_and_published_after_is_inherited(
    store: Store, tmp_path: Path, steps: int
) -> None:
    """However many targets came while it was judged, each with an heir of older weights that was entered later."""
    targets = [str(at) * 64 for at in range(steps + 2)]
    line = arrive(store, tmp_path, targets[0])
    first = publish(store, line, 2.0)
    late, origins = store.versions.stage(line, first, "full", lambda folder: write_weights(folder, 3.0)).id, [first]
    for old, new in pairwise(targets):
        after = arrive(store, tmp_path, new)
        store.targets.succeed(old, new)
        heir = offer_heir(store, after)
        assert heir is not None
        origins.append(store.versions.settle_heir(heir.id, {}, good=True).evidence[HEIR_OF])
        if new == targets[-2]:
            store.versions.promote(late)
    assert origins[-1] == late and late not in origins[:-1]


@pytest.mark.parametrize("value", [2.0, 1.0])
def test_a_number_0_that_is_a_fork_of_what_had_learned_is_inherited(store: Store, tmp_path: Path, value: float) -> None:
    """A route's new draft begins with the current version of another; one that began with number 0 has nothing."""
    current = arrive(store, tmp_path, A)
    learned = publish(store, current, value) if value != 1.0 else store.versions.current(current).id
    origin = fork(store.versions, "sql", learned)
    root = arrive(store, tmp_path, B)
    store.targets.succeed(A, B)
    line = fork(store.versions, "sql", store.versions.current(root).id).draft
    heir = offer_heir(store, line)
    assert heir is None if value == 1.0 else heir is not None and heir.evidence[HEIR_OF] == origin.id


def test_an_heir_that_is_no_good_or_overtaken_or_held_serves_nothing(store: Store, tmp_path: Path) -> None:
    publish(store, arrive(store, tmp_path, A), 2.0)
    for target, good in ((B, False), (C, True)):
        line = arrive(store, tmp_path, target)
        store.targets.succeed(A, target)
        heir = offer_heir(store, line)
        assert heir is not None
        other = publish(store, line, 3.0) if good else store.versions.current(line).id
        assert store.versions.settle_heir(heir.id, {}, good=good).id == other
        assert store.versions.get(heir.id).state is VersionState.REJECTED and offer_heir(store, line) is None


def test_who_succeeds_whom(store: Store, tmp_path: Path) -> None:
    arrive(store, tmp_path, A)
    arrive(store, tmp_path, B, vocabulary="other")
    with pytest.raises(BadInput, match="its tokenizer is another"):
        store.targets.succeed(A, B)
    store.targets.arrive(C, "c")
    with pytest.raises(BadInput, match="architecture is not known"):
        store.targets.succeed(A, C)
    store.targets.arrive(C, "c", LLAMA)
    store.targets.succeed(A, C)
    for old, new in ((C, A), (A, A)):
        with pytest.raises(BadInput, match="comes after it"):
            store.targets.succeed(old, new)
    assert store.targets.ancestors(C) == [A] and store.targets.ancestors(A) == []
    with pytest.raises(BadInput, match="served last"):
        store.targets.forget(C)
    with pytest.raises(NotFound):
        store.targets.succeed("d" * 64, A)
    store.targets.forget(A)
    assert store.targets.ancestors(C) == [] and {one.digest for one in store.targets.served()} == {B, C}


def test_a_new_target_alike_succeeds_the_last_one_where_the_settings_say_so(store: Store) -> None:
    said = [store.targets.arrive(target, target[:2], LLAMA, successors=True) for target in (A, B, A, C)]
    assert "It is its successor" in said[1][0] and "osd targets succeed" not in said[2][0]
    assert [store.targets.ancestors(target) for target in (A, B, C)] == [[], [A], [A]]
    store.targets.arrive("d" * 64, "other", {**LLAMA, "vocabulary": "w"}, successors=True)
    assert store.targets.ancestors("d" * 64) == []


def test_a_successors_number_0_takes_no_room(store: Store, tmp_path: Path) -> None:
    first = store.versions.current(arrive(store, tmp_path, A))
    for target, linked in ((B, True), (C, False)):
        store.targets.arrive(target, target[:2], LLAMA)
        if linked:
            store.targets.succeed(A, target)
        root = begin_line(store, "default", tmp_path / "draft", target)
        files = [store.versions.folder(one) / "model.safetensors" for one in (first, root)]
        assert root.digest == first.digest
        if isinstance(store.versions.files.place, LocalFolder):
            assert files[0].samefile(files[1]) is linked


def test_divergence_is_kept_by_target_and_route(store: Store) -> None:
    store.targets.arrive(A, "a")
    store.targets.note_divergence(A, B, {"default": 0.25, "sql": 0.5})
    store.targets.note_divergence(A, B, {"sql": 0.75})
    store.targets.note_divergence(A, C, {})
    store.targets.arrive(A, "a", LLAMA)
    assert store.targets.divergence(A) == {B: {"default": 0.25, "sql": 0.75}, C: {}}
    assert store.targets.divergence(B) == store.targets.divergence(None) == {}


def test_what_an_heir_learned_from_is_found(store: Store, tmp_path: Path) -> None:
    line = arrive(store, tmp_path, A)
    store.samples.add([samples(1, target=A)])
    run = claim(store, line)
    staged = store.versions.stage(line, run.parent, "full", lambda to: write_weights(to, 2.0), run_id=run.id)
    store.versions.publish(staged.id, {}, run=run)
    second = arrive(store, tmp_path, B)
    store.targets.succeed(A, B)
    heir = offer_heir(store, second)
    assert heir is not None
    store.versions.settle_heir(heir.id, {}, good=True)
    grandchild = publish(store, second, 5.0)
    with store.db.session(read_only=True) as session:
        assert get_row(session, heir.id).run_id is None
        assert learned_from(session, ["r1"]).versions == (staged.id, heir.id, grandchild)


class MovingTarget:
    """A target that moves while engines answer and runs learn."""

    def __init__(self, store: Store, tmp_path: Path, seed: int) -> None:
        self.store, self.tmp_path, self.chance = store, tmp_path, random.Random(seed)
        self.targets, self.answered, self.runs = [A], dict[str, str](), list[TrainingRun]()
        arrive(store, tmp_path, A)

    @property
    def line(self) -> str:
        return self.store.versions.current("default", self.targets[-1]).draft

    def update(self) -> None:
        new = self.chance.choice([sha256(str(len(self.targets)).encode()).hexdigest(), *self.targets])
        arrive(self.store, self.tmp_path, new)
        if new not in self.targets:
            self.store.targets.succeed(self.targets[-1], new)
        self.targets.append(new)

    def answer(self) -> None:
        """Some are of an engine that has not heard of the update yet."""
        name = f"r{len(self.answered)}"
        self.answered[name] = self.chance.choice(self.targets[-2:])
        self.store.samples.add([samples(len(self.answered) - 1, target=self.answered[name])])

    def claim(self) -> None:
        if self.store.samples.waiting(self.line).requests and self.line not in {run.draft for run in self.runs}:
            self.runs.append(claim(self.store, self.line))
            taken = {self.answered[one] for one in self.runs[-1].request_ids}
            assert taken == {self.store.versions.target_of(self.line)}

    def publish(self) -> None:
        """A run ends: whether its target has moved on meanwhile or not, what it learned is its own line's."""
        if not self.runs:
            return
        run = self.runs.pop(self.chance.randrange(len(self.runs)))
        good = self.store.versions.current(run.draft).id == run.parent
        if good:
            about = {"judged_on": self.store.versions.target_of(run.draft)}
            self.store.versions.publish(stage(self.store, run.parent, self.chance.random(), run).id, about, run=run)
        self.store.runs.finish(run, RunState.PUBLISHED if good else RunState.REJECTED)

    def judge(self) -> None:
        if heir := offer_heir(self.store, self.line):
            about = {"judged_on": self.store.versions.target_of(self.line)}
            self.store.versions.settle_heir(heir.id, about, good=self.chance.random() < 0.7)

    def back(self) -> None:
        if self.store.versions.current(self.line).number:
            self.store.versions.rollback(self.line, "worse")

    def check(self) -> None:
        for target in self.targets:
            serves = self.store.versions.current("default", target)
            assert self.store.versions.target_of(serves.draft) == target
            assert serves.number == 0 or serves.evidence["judged_on"] == target


@pytest.mark.parametrize("seed", range(2))
def test_nothing_is_learned_under_a_wrong_name_whatever_comes_when(store: Store, tmp_path: Path, seed: int) -> None:
    """A version serves a target only if it was judged there or is its line's number 0, and a run claims answers of its
    own line's target only."""
    world = MovingTarget(store, tmp_path, seed)
    for _ in range(40):
        world.chance.choice([world.update, world.answer, world.claim, world.publish, world.judge, world.back])()
        world.check()
    assert len(world.answered) and len(set(world.targets)) > 1
