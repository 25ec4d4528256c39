"""Records and folders for the storage tests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from storage.records import DraftVersion, Outcome, RequestSamples, RunState, TrainingRun
from storage.runs import ClaimTerms
from storage.store import Store

LISTS = (
    "tokens",
    "positions",
    "kinds",
    "drafted",
    "topk_ids",
    "topk_logprobs",
    "outside",
    "acceptance",
    "hidden_states",
)
SCALARS = ("request_id", "route", "tenant", "draft_version", "created_at", "prompt_len")


def samples(number: int, *, m: int = 3, k: int = 4, prompt: int = 5, **changes: Any) -> RequestSamples:
    """Request ``r<number>`` with m positions, all its numbers drawn from its number."""
    rng = np.random.default_rng(number)
    values: dict[str, Any] = {
        "request_id": f"r{number}",
        "route": "default",
        "tenant": "default",
        "draft_version": "default-000000-00000000",
        "created_at": time.time() - 1000 + number,
        "prompt_len": prompt,
        "tokens": rng.integers(0, 50_000, prompt + m + 1).astype(np.int32),
        "positions": np.arange(prompt, prompt + m, dtype=np.int32),
        "kinds": rng.integers(0, 3, m).astype(np.uint8),
        "drafted": rng.integers(0, 50_000, m).astype(np.int32),
        "topk_ids": rng.integers(0, 50_000, (m, k)).astype(np.int32),
        "topk_logprobs": -np.sort(rng.exponential(4, (m, k))).astype(np.float16),
        "outside": rng.random(m).astype(np.float32),
        "acceptance": np.where(rng.random(m) < 0.2, np.nan, rng.random(m)).astype(np.float16),
    }
    return RequestSamples(**{**values, **changes})


def with_hidden(number: int, *, m: int = 3, width: int = 8, **changes: Any) -> RequestSamples:
    """The same with the target's hidden states."""
    states = np.random.default_rng(number).normal(size=(m, width)).astype(np.float16)
    return samples(number, m=m, hidden_states=states, **changes)


def assert_same(left: RequestSamples, right: RequestSamples) -> None:
    """Every field equal, bit for bit, shape and type included."""
    for name in SCALARS:
        assert getattr(left, name) == getattr(right, name), name
    for name in LISTS:
        one, other = getattr(left, name), getattr(right, name)
        if one is None or other is None:
            assert one is other, name
            continue
        assert (one.dtype, one.shape) == (other.dtype, other.shape), name
        assert one.tobytes() == other.tobytes(), name


def outcome(**changes: Any) -> Outcome:
    """Forty tokens drafted in ten rounds, thirty accepted, eight rejections."""
    values: dict[str, Any] = {
        "request_id": "r",
        "route": "default",
        "tenant": "default",
        "draft_version": "default-000000-00000000",
        "controller": "fixed",
        "finished_at": 1_000_000.0,
        "requests": 1,
        "rounds": 10,
        "drafted": 40,
        "accepted": 30,
        "rejections": 8,
        "emitted": 40,
        "prompt_tokens": 12,
        "draft_ms": 1.5,
        "verify_ms": 2.5,
    }
    return Outcome(**{**values, **changes})


def write_weights(folder: Path, value: float, size: int = 8) -> None:
    """What a trainer would put into a folder: a configuration and one tensor of ``size`` numbers."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text('{"model_type": "test"}')
    save_file({"weight": np.full(size, value, np.float32)}, folder / "model.safetensors")


def at_once(*actions: Callable[[], object]) -> list[object]:
    """Run each in a thread of its own, all starting together; what each returned or raised, in the order given."""
    barrier = threading.Barrier(len(actions))
    results: list[object] = [None] * len(actions)

    def run(number: int, action: Callable[[], object]) -> None:
        barrier.wait()
        try:
            results[number] = action()
        except Exception as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=each) for each in enumerate(actions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def add_root(store: Store, folder: Path, draft: str = "default") -> str:
    """Register number 0 of a draft; returns its id."""
    write_weights(folder, 0.0)
    return store.versions.register_root(draft, folder).id


def claim(store: Store, draft: str = "default", holder: str = "trainer", **changes: Any) -> TrainingRun:
    """Claim all that waits for a draft, for a minute."""
    run = store.runs.claim(draft, holder, replace(ClaimTerms(1, 0.0, 60.0), **changes))
    assert run is not None
    return run


def stage(store: Store, parent: str, value: float = 1.0, run: TrainingRun | None = None) -> DraftVersion:
    """Enter a child of a version as a candidate, of a run if there is one."""
    draft, run_id = store.versions.get(parent).draft, None if run is None else run.id
    return store.versions.stage(draft, parent, "full", lambda folder: write_weights(folder, value), run_id=run_id)


def publish(store: Store, value: float = 1.0, evidence: Mapping[str, Any] | None = None) -> DraftVersion:
    """One whole run that takes one request: claim, stage, publish, finish."""
    run = claim(store, max_requests=1)
    version = store.versions.publish(stage(store, run.parent, value, run).id, evidence or {}, run=run)
    store.runs.finish(run, RunState.PUBLISHED, version.id)
    return version
