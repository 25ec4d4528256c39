"""The whole circle of a feature draft: it serves, what it served is learned from, and the version that comes of it is
taken over in mid-traffic."""

from __future__ import annotations

from pathlib import Path

import pytest

from osd.engine.engine import Engine
from osd.hotswap.drafts import Swap
from osd.hotswap.new_draft import new_feature_version
from osd.models.features.new import KINDS
from osd.models.pair import load_pair
from osd.recording.recorder import Recorder
from osd.server.start import PairNames, draft_in_store
from storage.records import Request, RunState
from storage.settings import Settings, load_settings
from storage.store import Store
from tests.support.models import alone, prompts, random_module
from trainer.distil.loop import run_once

NEW = 16


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(
        storage={"directory": tmp_path / "data", "holdout": 0.2},
        serve={
            "target": str(tmp_path / "target"), "max_batch": 4, "max_length": 64, "device": "cpu",
            "record_hidden_states": True,
        },
        gamma={"rule": "fixed", "initial": 3},
        learn={"interval_requests": 8, "epochs": 8, "learning_rate": 5e-3, "batch_tokens": 256},
        gate={"min_requests": 4}, trainer={"device": "cpu"},
    )  # fmt: skip


def accepted(engine: Engine, seed: int, count: int) -> float:
    """Serve prompts; return accepted ÷ rounds. Every text must be the target's own."""
    done = list(engine.run([Request(p, max_new_tokens=NEW) for p in prompts(count, seed=seed)]))
    for c in done[:4]:
        assert list(c.tokens) == alone(engine.pair.target.module, c.request.prompt_tokens, NEW)
    rounds = [r for c in done for r in c.rounds]
    return sum(r.accepted for r in rounds) / len(rounds)


@pytest.mark.parametrize(("kind", "teacher"), [
    ("dflash", "recompute"), ("eagle", "recorded"),
    *(pytest.param(kind, "recompute", marks=pytest.mark.long) for kind in KINDS if kind != "dflash"),
])  # fmt: skip
def test_traffic_makes_a_draft_of_random_weights_better(
    store: Store, settings: Settings, tmp_path: Path, kind: str, teacher: str
) -> None:
    settings = settings.changed(learn={"teacher": teacher})
    random_module("llama").save_pretrained(tmp_path / "target")
    root = new_feature_version(store, "default", str(tmp_path / "target"), kind)  # type: ignore[arg-type]
    names = draft_in_store(PairNames(str(tmp_path / "target"), "default"), store)
    pair = load_pair(names.target, names.draft, device="cpu")
    swap, recorder = (
        Swap(store, "default", pair, settings, "test"),
        Recorder(store, settings, "test", target=pair.target.digest),
    )
    swap.close()
    engine = Engine(pair, settings, swap=swap, recorder=recorder)
    before = accepted(engine, 1, 40)
    recorder.close()
    engine.recorder = None
    run = run_once(store, settings, "default", "me")
    assert run is not None and run.state is RunState.PUBLISHED, run and run.result
    version = store.versions.current("default")
    engine.submit(Request(prompts(1)[0], max_new_tokens=NEW))
    for _ in range(2):
        engine.step()
    swap._poll()
    (lived,) = engine.run([])
    assert {r.draft_version for r in lived.rounds} == {root.id, version.id}
    assert list(lived.tokens) == alone(pair.target.module, lived.request.prompt_tokens, NEW)
    assert accepted(engine, 1, 40) > before
