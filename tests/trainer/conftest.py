"""A store with a draft in it, and traffic to learn from."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from storage.records import RequestSamples
from storage.replay.segment_files import is_held_out
from storage.settings import Settings, load_settings
from storage.store import Store
from tests.trainer.models import answers, random_prompts, tiny_llama

HOLDOUT = 0.1


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Those of :func:`quick`, in a data directory of the test's own."""
    return quick(tmp_path / "data")


def quick(directory: Path) -> Settings:
    """Learning that moves a tiny draft a lot in a short time."""
    return load_settings(
        storage={"directory": directory, "holdout": HOLDOUT},
        learn={"interval_requests": 8, "replay_requests": 64, "epochs": 6, "learning_rate": 5e-3, "batch_tokens": 256},
        gate={"requests": 48, "min_requests": 4, "confidence": 0.9},
        trainer={"poll_seconds": 0.1, "device": "cpu"},
    )


@pytest.fixture
def draft_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "draft"
    tiny_llama(2).save_pretrained(folder)
    return folder


@pytest.fixture
def drafted(store: Store, draft_folder: Path) -> Store:
    """The store with version 0 of the draft ``default``."""
    store.versions.register_root("default", draft_folder)
    return store


Traffic = Callable[..., list[RequestSamples]]


@pytest.fixture(scope="session")
def all_answers() -> list[RequestSamples]:
    """What one target says to 160 prompts."""
    return answers(tiny_llama(1), random_prompts(160))


@pytest.fixture
def traffic(drafted: Store, all_answers: Sequence[RequestSamples]) -> Traffic:
    """Puts the next n requests into the store: ``held_out`` True or False takes only that side of the split."""
    from dataclasses import replace

    from storage.records import new_id, now

    left = list(all_answers)

    def send(n: int, held_out: bool | None = None, **changes: object) -> list[RequestSamples]:
        batch: list[RequestSamples] = []
        while len(batch) < n:
            one = replace(left.pop(0), request_id=new_id(), created_at=now(), **changes)  # type: ignore[arg-type]
            if held_out is None or is_held_out(one, HOLDOUT) == held_out:
                batch.append(one)
        drafted.samples.add(batch)
        return batch

    return send


@pytest.fixture
def never() -> threading.Event:
    """A stop that nobody asks for."""
    return threading.Event()
