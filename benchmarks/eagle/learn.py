"""An EAGLE draft for a target: of random weights first, then trained on the target's own answers, as traffic would."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.distil.bench import trainer_said
from benchmarks.distil.texts import answers
from osd.bench.harness.prompts import Tokens
from osd.bench.harness.watch import Watch
from osd.demo.runner.process import save_settings
from osd.engine.session import in_folder
from osd.hotswap.new_draft import new_feature_version
from osd.models.pair import Pair
from storage.errors import TrainingFailed
from storage.files.files import writing
from storage.records import DEFAULT_DRAFT, RequestSamples, new_id, now
from storage.replay.exports import read_export, write_export
from storage.sampling import GREEDY
from storage.settings import Settings
from storage.store import open_store

EPOCHS = 6
PART = 40
"""Answers that are kept at once: a stopped run goes on behind the last part."""


def trained_eagle(
    pair: Pair, settings: Settings, prompts: Sequence[Tokens], most: int, folder: Path, watch: Watch
) -> Path:
    """Return the folder of an EAGLE draft that learned from the pair's target's greedy answers to ``prompts``, of
    ``most`` tokens at most; one that ``folder`` holds already is kept.

    Raises TrainingFailed where what it learned was not proven to be better than random weights, StoreError.
    """
    made = folder / "draft"
    if made.exists():
        return made
    own = _settings(settings, in_folder(pair.target).name, folder / "data", len(prompts))
    samples = _answered(pair, own, prompts, most, folder / "answers", watch)
    watch.say(f"An EAGLE draft learns from {len(samples)} answers.")
    shutil.rmtree(folder / "data", ignore_errors=True)  # of a run that was stopped in training
    root = _stored(own, pair, samples)
    config = save_settings(own, folder / "osd.toml")
    said = trainer_said("once", "--config", config, "--draft", DEFAULT_DRAFT, "--json", told="an EAGLE draft")
    with open_store(own) as store, writing(folder):
        version = store.versions.current(DEFAULT_DRAFT)
        if version.id == root:
            raise TrainingFailed(run="(eagle)", draft=DEFAULT_DRAFT, reason=_why(said))
        shutil.copytree(store.versions.folder(version), folder / "aside", dirs_exist_ok=True)
        (folder / "aside").rename(made)
    return made


def _answered(
    pair: Pair, settings: Settings, prompts: Sequence[Tokens], most: int, folder: Path, watch: Watch
) -> list[RequestSamples]:
    """Return the target's greedy answers; the parts that ``folder`` has are read."""
    samples: list[RequestSamples] = []
    for first in range(0, len(prompts), PART):
        watch.at(f"an EAGLE draft: {first} of {len(prompts)} answers to learn from")
        path = folder / f"{first}.parquet"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            some = answers(pair, settings, prompts[first : first + PART], GREEDY, most)
            write_export(path, [some], overwrite=False)
        samples += [each for batch in read_export(path) for each in batch]
    return samples


def _stored(settings: Settings, pair: Pair, samples: Sequence[RequestSamples]) -> str:
    """Put a draft of random weights and what it is to learn from into a store; return the draft's first version."""
    with open_store(settings) as store:
        root = new_feature_version(store, DEFAULT_DRAFT, settings.serve.target or "", "eagle").id
        named = {"target": pair.target.digest, "draft_version": root, "created_at": now()}
        store.samples.add([replace(each, request_id=new_id(), **named) for each in samples])  # type: ignore[arg-type]
    return root


def _settings(settings: Settings, target: str, data: Path, count: int) -> Settings:
    """Return settings by which one run learns from all answers but those that judge it."""
    learn = {
        "teacher": "recompute", "max_requests": max(1, count), "replay_requests": 0, "epochs": EPOCHS,
        "interval_requests": 1, "batch_positions": 256,
    }  # fmt: skip
    storage = {"directory": data, "url": None, "holdout": 0.1}
    return settings.changed(storage=storage, learn=learn, serve={"target": target, "draft": None, "max_batch": 8})


def _why(said: str) -> str:
    """Return what the run said of itself."""
    runs = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    return str(runs[-1].get("reason", runs[-1])) if runs else "it said nothing"
