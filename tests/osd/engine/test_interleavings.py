"""Updates of the target, answers, claims and publications in any order: texts are whole, and nothing is learned or
served under a wrong name."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from osd.engine import moving_target
from osd.engine.moving_target import MovingTarget, TargetRefused
from osd.models.model_digest import model_digest
from osd.models.pair import load_pair
from storage.errors import LeaseHeld
from storage.names import line_name
from storage.records import Request, TrainingRun
from storage.runs import ClaimTerms
from storage.settings import load_settings
from storage.sql.ledger import HEIR_OF
from storage.store import Store, open_store
from tests.support.models import alone, noisy, prompts, random_module
from tests.support.random_tokenizers import random_tokenizer

LENGTH = 8
TARGETS = ("one", "two", "three")
OPERATIONS = ("answer", "step", "keep", "wait", "words", "claim", "publish")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three targets that follow each other, a draft, and a target with another tokenizer."""
    folder, target = tmp_path_factory.mktemp("targets"), random_module("llama")
    noisy(target, 0.3).save_pretrained(folder / "draft")
    for seed, name in enumerate(TARGETS):
        noisy(target, 0.1 * seed, seed=seed).save_pretrained(folder / name)
        random_tokenizer("byte_level", 1).save_pretrained(folder / name)
    random_tokenizer("byte_level", 1).save_pretrained(folder / "draft")
    shutil.copytree(folder / "two", folder / "words")
    words = json.loads((folder / "words" / "tokenizer.json").read_text())
    first, second = list(vocab := words["model"]["vocab"])[-2:]
    vocab[first], vocab[second] = vocab[second], vocab[first]
    (folder / "words" / "tokenizer.json").write_text(json.dumps(words))
    return folder


class Interleaving:
    """One order of things over one store."""

    def __init__(self, folders: Path, store: Store, session: MovingTarget, chance: random.Random) -> None:
        self.folders, self.store, self.session, self.chance = folders, store, session, chance
        self.digests = {name: str(model_digest(str(folders / name))) for name in TARGETS}
        pairs = {name: load_pair(folders / name, folders / "draft") for name in TARGETS}
        self.modules = {self.digests[name]: pair.target.module for name, pair in pairs.items()}
        self.asked: dict[str, tuple[Request, list[str], list[list[int]]]] = {}
        """By request: the targets that it was under, and what it had when each came."""
        self.answered = 0
        self.run: TrainingRun | None = None

    def answer(self) -> None:
        """Ask something."""
        (prompt,) = prompts(1, seed=self.chance.randrange(1000))
        request = Request(prompt, LENGTH, ignore_eos=True)
        self.session.engine.submit(request)
        self.asked[request.id] = (request, [str(self.session.pair.target.digest)], [])

    def step(self) -> None:
        """Decode a little."""
        for each in self.session.engine.step():
            if each.completion:
                self._check(each.completion)

    def wait(self) -> None:
        """An update, once all is answered."""
        while self.session.engine.busy:
            self.step()
        self._move()

    def keep(self) -> None:
        """An update in the middle."""
        rows = self.session.engine.hand_over()
        self._move()
        for row in rows:
            _, targets, had = self.asked[row.request.id]
            targets.append(str(self.session.pair.target.digest))
            had.append(list(row.output))
        self.session.engine.take_over(rows)

    def _move(self) -> None:
        """Once or twice in a row."""
        for _ in range(self.chance.choice((1, 1, 2))):
            name = self.chance.choice([one for one in TARGETS if self.digests[one] != self.session.pair.target.digest])
            self.session.move(self.session.load(str(self.folders / name)))

    def words(self) -> None:
        """An update whose folder has another tokenizer is refused, and nothing has happened."""
        before = self.session.engine, self.session.pair
        with pytest.raises(TargetRefused, match="its tokenizer is another"):
            self.session.load(str(self.folders / "words"))
        assert (self.session.engine, self.session.pair) == before

    def claim(self) -> None:
        """A run begins, about a target that serves or served."""
        line = self.chance.choice(self.store.versions.lines(["default"]))
        if self.run is None:
            self.session.engine.recorder.wait()  # type: ignore[union-attr]
            self.run = self.store.runs.claim(line, "trainer", ClaimTerms(1, 0.0, 600.0))
        if self.run is not None:
            about = self.store.versions.target_of(self.run.draft)
            assert {one.target for one in self.store.samples.read(self.run.request_ids)} == {about}

    def publish(self) -> None:
        """A run ends, whatever serves by now."""
        if self.run is None:
            return
        taught = noisy(self.modules[self.digests["one"]], 0.2, seed=self.chance.randrange(1000))
        staged = self.store.versions.stage(
            self.run.draft, self.run.parent, "full", taught.save_pretrained, run_id=self.run.id
        )
        self.store.versions.publish(staged.id, {}, run=self.run)
        self.store.runs.finish(self.run, self.store.runs.get(self.run.id).state, staged.id)
        self.run = None

    def check(self) -> None:
        """What serves was made on its target or judged there; what is kept is what that target said."""
        serving = self.store.versions.get(self.session.engine.draft_version)
        target = str(self.session.pair.target.digest)
        assert self.store.versions.target_of(serving.draft) == target
        if HEIR_OF in serving.evidence:
            assert serving.evidence["judged_on"] == target

    def end(self) -> None:
        """Answer all; look at all that is kept."""
        while self.session.engine.busy:
            self.step()
        assert not self.asked
        self.session.engine.recorder.wait()  # type: ignore[union-attr]
        for text in self.store.samples.read(self.store.samples.recent(limit=1000)):
            line = self.store.versions.get(text.draft_version).draft
            assert self.store.versions.target_of(line) == text.target
            said = text.tokens.tolist()
            for position, ids in zip(text.positions.tolist(), text.topk_ids[:, 0].tolist(), strict=True):
                assert [ids] == alone(self.modules[str(text.target)], tuple(said[:position]), 1)

    def _check(self, done: Any) -> None:
        """A text is whole: of each target what it said after what there was."""
        request, targets, had = self.asked.pop(done.request.id)
        cuts, tokens = [*map(len, had), LENGTH], list(done.tokens)
        begin = 0
        for target, end in zip(targets, cuts, strict=True):
            before = (*request.prompt_tokens, *tokens[:begin])
            assert tokens[begin:end] == alone(self.modules[target], before, end - begin)
            begin = end
        self.answered += 1


@contextmanager
def begun(folders: Path, directory: Path, target: str = "one") -> Iterator[tuple[Store, MovingTarget]]:
    serve = {"max_batch": 3, "max_length": 64, "swap_poll_seconds": 0.02}
    own = load_settings(storage={"directory": directory, "flush_requests": 1, "holdout": 0.0}, serve=serve)
    pair = load_pair(folders / target, folders / "draft", device="cpu")
    with open_store(own) as store, MovingTarget(pair, own, store) as session:
        yield store, session


@pytest.mark.long
@given(order=st.lists(st.sampled_from(OPERATIONS), min_size=4, max_size=16), seed=st.integers(0, 1 << 20))
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
def test_nothing_is_said_learned_or_served_under_a_wrong_name(folders: Path, order: list[str], seed: int) -> None:
    with TemporaryDirectory() as name, begun(folders, Path(name)) as (store, session):
        told = Interleaving(folders, store, session, random.Random(seed))
        for operation in ("answer", "step", *order):
            try:
                getattr(told, operation)()
            except LeaseHeld:
                continue
            told.check()
        told.end()


class Crash(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("then", ["two", "one"])
@pytest.mark.parametrize("place", ["arrive", "succeed", "settle_heir"])
def test_a_crash_between_the_targets_update_and_ours(
    folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, then: str
) -> None:
    """Whoever starts next, with the new target or the old one, serves what was judged there."""

    def crashing(of: Any) -> Callable[..., Any]:
        made = getattr(of, place)

        def crash(*given: Any, **named: Any) -> None:
            made(*given, **named) if place != "settle_heir" else None
            raise Crash

        return crash

    with pytest.raises(Crash), begun(folders, tmp_path / "data") as (store, session):
        told = Interleaving(folders, store, session, random.Random(1))
        for operation in ("answer", "answer", "answer"):
            getattr(told, operation)()
        while session.engine.busy:
            told.step()
        told.claim()
        told.publish()
        learned = store.versions.current("default", told.digests["one"])
        assert learned.number == 1
        pair = session.load(str(folders / "two"))
        with monkeypatch.context() as patch:
            owner = store.versions if place == "settle_heir" else store.targets
            patch.setattr(owner, place, crashing(owner))
            patch.setattr(moving_target.MovingTarget, "__exit__", lambda *_: None)
            session.move(pair)
    with begun(folders, tmp_path / "data", then) as (store, session):
        told = Interleaving(folders, store, session, random.Random(2))
        told.check()
        assert store.versions.current("default", told.digests["one"]).id == learned.id
        for operation in ("answer", "step", "keep"):
            getattr(told, operation)()
            told.check()
        told.end()
        line = line_name("default", told.digests["two"])
        assert all(one.state.value != "candidate" for one in store.versions.list(line)), "each was judged"
