"""Feature drafts of random weights that osd makes and teaches, and what its own engine does with them: what a vLLM with
the same drafts is held against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from osd.attached.follower import servable_folder
from osd.engine.engine import Engine
from osd.engine.session import serving
from osd.hotswap.new_draft import new_feature_version
from osd.models.features.new import Kind
from osd.models.pair import Pair, load_pair
from osd.models.target_only import load_alone
from osd.server.start import PairNames, draft_in_store
from storage.records import DEFAULT_DRAFT, DraftVersion, Request, RunState
from storage.settings import Settings, load_settings
from storage.store import Store, open_store
from trainer.distil.loop import run_once

GAMMA, NEW = 4, 48
Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Steps:
    """An answer, and what each round accepted and drafted."""

    tokens: list[int]
    accepted: list[int]
    drafted: list[int]
    first: int
    """Tokens of the answer that were there before the first round: vLLM's prefill brings one, osd's none."""

    @property
    def by_place(self) -> dict[int, int]:
        """What each round accepted, by the tokens that were there before it; without those that the answer's end may
        have cut."""
        found, place = dict[int, int](), self.first
        for kept, length in zip(self.accepted, self.drafted, strict=True):
            if length < GAMMA or place + GAMMA >= len(self.tokens):
                break
            found[place], place = kept, place + kept + 1
        return found


def settings_for(folder: Path, target: Path, vocabulary: int | None = None) -> Settings:
    """Return settings under which chains of GAMMA are drafted, and features are read from the target again."""
    return load_settings(
        storage={"directory": folder, "holdout": 0.1},
        serve={"target": str(target), "max_batch": 8, "max_length": 512, "device": "cpu", "dtype": "float32"},
        gamma={"rule": "fixed", "initial": GAMMA}, trainer={"device": "cpu"},
        learn={
            "teacher": "recompute", "steps": GAMMA, "interval_requests": 32, "replay_requests": 160, "epochs": 2,
            "batch_positions": 256,
            "draft_vocabulary": vocabulary,
        },
    )  # fmt: skip


def teach(settings: Settings, kind: Kind, rounds: Sequence[Sequence[Tokens]]) -> list[DraftVersion]:
    """Make a draft of a kind, and teach it on the target's answers to the prompts of each round. Return its versions,
    number 0 first."""
    target, tokens = str(settings.serve.target), settings.learn.draft_vocabulary
    with open_store(settings) as store:
        versions = [new_feature_version(store, DEFAULT_DRAFT, target, kind, vocabulary=tokens)]
        for prompts in rounds:
            record(settings, store, prompts)
            run = run_once(store, settings, DEFAULT_DRAFT, "test")
            assert run is not None and run.state is RunState.PUBLISHED, run and run.result
            versions.append(store.versions.current(DEFAULT_DRAFT))
    return versions


def record(settings: Settings, store: Store, prompts: Sequence[Tokens]) -> None:
    """Serve prompts, and keep what a draft can learn from."""
    names = draft_in_store(PairNames(str(settings.serve.target), DEFAULT_DRAFT), store)
    with serving(names.load(settings.serve), settings, store) as engine:
        list(engine.run([Request(prompt, max_new_tokens=NEW) for prompt in prompts]))


def for_engines(settings: Settings, version: DraftVersion) -> Path:
    """Return the folder of a version as engines load it."""
    with open_store(settings) as store:
        return servable_folder(store, version)


def osd_steps(target: Path, draft: Path, prompts: Sequence[Tokens]) -> list[Steps]:
    """Return what osd's own engine answers with a draft's folder, and how, in the prompts' order."""
    settings = settings_for(draft, target)
    return _steps(load_pair(str(target), str(draft), device="cpu", dtype="float32"), settings, prompts)


def alone(target: Path, prompts: Sequence[Tokens]) -> list[list[int]]:
    """Return the answers of the target alone, by osd's engine."""
    settings = settings_for(target, target).changed(gamma={"initial": 0}, drafters={"kind": "lookup"})
    return [one.tokens for one in _steps(load_alone(str(target), device="cpu", dtype="float32"), settings, prompts)]


def _steps(pair: Pair, settings: Settings, prompts: Sequence[Tokens]) -> list[Steps]:
    engine = Engine(pair, settings)
    requests = [Request(prompt, max_new_tokens=NEW) for prompt in prompts]
    places = {id(request): place for place, request in enumerate(requests)}
    found: dict[int, Steps] = {}
    for done in engine.run(requests):
        rounds = [one for one in done.rounds if one.drafted]
        found[places[id(done.request)]] = Steps(
            list(done.tokens), [one.accepted for one in rounds], [one.drafted for one in rounds], 0
        )
    return [found[place] for place in range(len(requests))]
