"""An EAGLE draft for a target: of random weights first, then trained on the target's own answers, as traffic would."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from osd.bench.contenders import run_in_order
from osd.bench.harness.prompts import Tokens
from osd.bench.harness.watch import Watch
from osd.engine.engine import Engine
from osd.engine.session import in_folder
from osd.hotswap.new_draft import new_feature_version
from osd.models.features.new import Kind
from osd.models.pair import Pair
from storage.errors import TrainingFailed
from storage.files.files import writing
from storage.records import DEFAULT_DRAFT, Request, RequestSamples, TokenKind, new_id, now
from storage.replay.exports import read_export, write_export
from storage.settings import Settings
from storage.store import open_store
from trainer.distil.loop import run_once
from trainer.distil.resident import ResidentModels

EPOCHS = 6
PART = 128
"""Answers that are kept at once: a stopped run goes on behind the last part."""
ROWS = 32
"""Answers that are decoded together."""


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
    own = eagle_settings(settings, pair, folder / "data", len(prompts))
    samples = recorded(pair, own, prompts, most, folder / "answers", watch)
    watch.say(f"An EAGLE draft learns from {len(samples)} answers.")
    teach_draft(pair, own, samples, folder)
    return made


def teach_draft(
    pair: Pair, own: Settings, samples: Sequence[RequestSamples], folder: Path, kind: Kind = "eagle",
    resident: ResidentModels | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Let a feature draft of random weights learn from samples by the settings, put it into ``folder``/draft, and
    return what the run says of itself. A ``resident`` target keeps what it read of samples that have ids. Raises
    TrainingFailed, StoreError."""
    shutil.rmtree(folder / "data", ignore_errors=True)  # of a run that was stopped in training
    root = _stored(own, pair, samples, kind)
    with open_store(own) as store, writing(folder):
        run = run_once(store, own, DEFAULT_DRAFT, "bench", resident=resident)
        version = store.versions.current(DEFAULT_DRAFT)
        if run is None or version.id == root:
            reason = "there was nothing to learn" if run is None else str(run.result.get("reason", run.result))
            raise TrainingFailed(run=f"({kind})", draft=DEFAULT_DRAFT, reason=reason)
        shutil.copytree(store.versions.folder(version), folder / "aside", dirs_exist_ok=True)
        (folder / "aside").rename(folder / "draft")
    return dict(run.result)


def recorded(
    pair: Pair, settings: Settings, prompts: Sequence[Tokens], most: int, folder: Path, watch: Watch
) -> list[RequestSamples]:
    """Return the target's greedy answers, texts alone; parts that ``folder`` has are read."""
    folder.mkdir(parents=True, exist_ok=True)
    samples: list[RequestSamples] = []
    for first in range(0, len(prompts), PART):
        watch.at(f"{first} of {len(prompts)} answers")
        path, some = folder / f"{first}.parquet", prompts[first : first + PART]
        kept = [each for batch in read_export(path) for each in batch] if path.exists() else []
        if len(kept) < len(some):
            kept = _answers(pair, settings, some, most)
            write_export(path, [kept], overwrite=True)
        samples += kept[: len(some)]
    return samples


def _answers(pair: Pair, settings: Settings, prompts: Sequence[Tokens], most: int) -> list[RequestSamples]:
    drafting: dict[str, Any] = {"gamma": {"rule": "fixed", "initial": 0, "routes": {}}, "drafters": {"kind": "lookup"}}
    alone = settings.changed(serve={"max_batch": ROWS, "record": "off"}, **drafting)
    done = run_in_order(Engine(pair, alone), [Request(prompt, most) for prompt in prompts])
    texts = [text_of(prompt, one.tokens) for prompt, one in zip(prompts, done, strict=True)]
    return [replace(text, request_id=one.request.id) for text, one in zip(texts, done, strict=True)]


def text_of(prompt: Tokens, tokens: Sequence[int]) -> RequestSamples:
    """Return a request that keeps its text alone."""
    text, n = np.array([*prompt, *tokens], np.int32), len(tokens)
    return RequestSamples(
        "", "default", "default", "", 1.0, len(prompt), text, np.arange(len(prompt), len(text), dtype=np.int32),
        np.full(n, TokenKind.UNDRAFTED, np.uint8), np.array(tokens, np.int32), np.zeros((n, 0), np.int32),
        np.zeros((n, 0), np.float16), np.ones(n, np.float32),
    )  # fmt: skip


def _stored(settings: Settings, pair: Pair, samples: Sequence[RequestSamples], kind: Kind) -> str:
    """Put a draft of random weights and what it is to learn from into a store; return the draft's first version."""
    with open_store(settings) as store:
        root = new_feature_version(store, DEFAULT_DRAFT, settings.serve.target or "", kind).id
        named = {"target": pair.target.digest, "draft_version": root, "created_at": now()}
        store.samples.add([replace(each, request_id=each.request_id or new_id(), **named) for each in samples])  # type: ignore[arg-type]
    return root


def eagle_settings(settings: Settings, pair: Pair, data: Path, count: int, **learn: Any) -> Settings:
    """Return settings by which one run learns from all answers but those that judge it; ``learn``: what else."""
    plain = {
        "teacher": "recompute", "max_requests": max(1, count), "replay_requests": 0, "epochs": EPOCHS,
        "interval_requests": 1, "batch_positions": 256,
    }  # fmt: skip
    storage = {"directory": data, "url": None, "holdout": 0.1}
    serve = {"target": in_folder(pair.target).name, "draft": None, "max_batch": 8}
    return settings.changed(storage=storage, learn=plain | learn, serve=serve)
