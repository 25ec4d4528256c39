"""An EAGLE draft for a target: of random weights first, then trained on the target's own answers, as traffic would."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from osd.bench.distil.texts import answers
from osd.bench.harness.prompts import Tokens
from osd.demo.runner.process import command, environment, save_settings
from osd.engine.session import in_folder
from osd.hotswap.new_draft import new_feature_version
from osd.models.pair import Pair
from storage.errors import TrainingFailed
from storage.files.files import writing
from storage.records import DEFAULT_DRAFT, new_id, now
from storage.sampling import GREEDY
from storage.settings import Settings
from storage.store import open_store

EPOCHS = 6
TAIL = 6
"""Lines of a failed process that are told."""


def trained_eagle(pair: Pair, settings: Settings, prompts: Sequence[Tokens], most: int, folder: Path) -> Path:
    """Return the folder of an EAGLE draft that learned from the pair's target's greedy answers to ``prompts``, of
    ``most`` tokens at most; one that ``folder`` holds already is kept.

    Raises TrainingFailed where what it learned was not proven to be better than random weights, StoreError.
    """
    made = folder / "draft"
    if made.exists():
        return made
    shutil.rmtree(data := folder / "data", ignore_errors=True)  # of a run that was stopped
    own = _settings(settings, in_folder(pair.target).name, data, len(prompts))
    with open_store(own) as store:
        root = new_feature_version(store, DEFAULT_DRAFT, own.serve.target or "", "eagle")
        samples = answers(pair, own, prompts, GREEDY, most)
        named = {"target": pair.target.digest, "draft_version": root.id, "created_at": now()}
        store.samples.add([replace(each, request_id=new_id(), **named) for each in samples])  # type: ignore[arg-type]
    done = subprocess.run(
        command("once", "--config", save_settings(own, folder / "osd.toml"), "--draft", DEFAULT_DRAFT, "--json"),
        env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    with open_store(own) as store, writing(folder):
        version = store.versions.current(DEFAULT_DRAFT)
        if version.id == root.id:
            raise TrainingFailed(run="(eagle)", draft=DEFAULT_DRAFT, reason=_why(done))
        shutil.copytree(store.versions.folder(version), folder / "aside", dirs_exist_ok=True)
        (folder / "aside").rename(made)
    return made


def _settings(settings: Settings, target: str, data: Path, count: int) -> Settings:
    """Return settings by which one run learns from all answers but those that judge it."""
    learn = {
        "teacher": "recompute", "max_requests": max(1, count), "replay_requests": 0, "epochs": EPOCHS,
        "interval_requests": 1, "batch_positions": 256,
    }  # fmt: skip
    storage = {"directory": data, "url": None, "holdout": 0.1}
    return settings.changed(storage=storage, learn=learn, serve={"target": target, "draft": None, "max_batch": 8})


def _why(done: subprocess.CompletedProcess[str]) -> str:
    """Return what the run said of itself, else the end of what its process said."""
    runs = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return str(runs[-1].get("reason", runs[-1])) if runs else "\n".join(done.stderr.splitlines()[-TAIL:])
