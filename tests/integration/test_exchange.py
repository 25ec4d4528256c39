"""Target, draft and tokenizer are exchanged under one store while a worker trains: what happens is what
docs/training.md says. All are real processes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from osd.demo import DRAFT, TARGET
from osd.models.model_digest import model_digest
from storage.names import line_name
from storage.records import RunState, TrainingRun
from storage.settings import load_settings
from storage.store import Store, open_store
from tests.trainer.processes import PATIENCE, ROOT, environment, wait_for, worker, write_config

pytestmark = pytest.mark.long
REQUESTS = 12


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_config(tmp_path / "osd.toml", {
        "storage": {"directory": str(tmp_path / "data"), "flush_seconds": 0.2, "holdout": 0.1},
        "serve": {"max_batch": 4},
        "learn": {"interval_requests": 6, "max_age_seconds": 5.0, "epochs": 1, "replay_requests": 8},
        "gate": {"min_requests": 2},
        "trainer": {"poll_seconds": 0.2, "device": "cpu", "nice": 0},
    })  # fmt: skip


def generate(config: Path, target: Path, draft: Path) -> subprocess.CompletedProcess[str]:
    """Serve some prompts in a process of its own."""
    prompts = config.parent / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"SELECT name FROM t{i}"}) + "\n" for i in range(REQUESTS)))
    command = [sys.executable, "-m", "osd.cli.main", "--config", str(config), "generate", "--prompts", str(prompts)]
    command += ["--target", str(target), "--draft", str(draft), "--max-tokens", "12", "--json"]
    return subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def changed_weights(model: Path, folder: Path) -> Path:
    """A copy whose weights are a little other ones."""
    shutil.copytree(model, folder)
    for path in folder.glob("*.safetensors"):
        tensors = {name: tensor * (1 + 1e-2) for name, tensor in load_file(path).items()}
        save_file(tensors, path, metadata={"format": "pt"})
    return folder


def changed_tokenizer(model: Path, folder: Path) -> Path:
    """A copy in whose tokenizer two tokens have changed places."""
    shutil.copytree(model, folder)
    path = folder / "tokenizer.json"
    facts = json.loads(path.read_text("utf-8"))
    vocabulary = facts["model"]["vocab"]
    one, other = list(vocabulary)[-2:]
    vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]
    path.write_text(json.dumps(facts), "utf-8")
    return folder


def judged(store: Store, line: str) -> TrainingRun | None:
    runs = store.runs.list(line)
    return next((run for run in runs if run.state in (RunState.PUBLISHED, RunState.REJECTED)), None)


def learned_from(store: Store, line: str) -> set[str | None]:
    """The targets of all requests that runs of a line had."""
    ids = [request for run in store.runs.list(line, limit=1000) for request in run.request_ids]
    return {one.target for one in store.samples.read(ids)}


def test_only_what_is_about_the_same_target_meets(config: Path, tmp_path: Path) -> None:
    digests = {}
    with open_store(load_settings(config)) as store, worker(config):
        assert generate(config, TARGET, DRAFT).returncode == 0
        digests["first"] = model_digest(str(TARGET))
        wait_for(lambda: judged(store, "default"))

        second = changed_weights(TARGET, tmp_path / "second")
        done = generate(config, second, DRAFT)  # another target: a line of its own, said in one sentence
        digests["second"] = model_digest(str(second))
        assert done.returncode == 0 and done.stderr.count("The target changed") == 1, done.stderr
        line = line_name("default", str(digests["second"]))
        wait_for(lambda: judged(store, line))
        assert learned_from(store, "default") == {digests["first"]}
        assert learned_from(store, line) == {digests["second"]}
        assert [store.versions.list(name)[0].number for name in ("default", line)] == [0, 0]

        draft = changed_weights(DRAFT, tmp_path / "draft")  # another draft under the same target: refused
        done = generate(config, second, draft)
        assert done.returncode == 5 and "started from other weights" in done.stderr
        assert "Traceback" not in done.stderr

        third = changed_tokenizer(TARGET, tmp_path / "third")  # another tokenizer than the draft's: refused
        done = generate(config, third, DRAFT)
        assert done.returncode == 4 and "do not share a vocabulary" in done.stderr
        done = generate(config, third, changed_tokenizer(DRAFT, tmp_path / "third-draft"))  # both: another target
        digests["third"] = model_digest(str(third))
        assert done.returncode == 0 and "The target changed" in done.stderr
        wait_for(lambda: judged(store, line_name("default", str(digests["third"]))))
        assert learned_from(store, line_name("default", str(digests["third"]))) == {digests["third"]}

        before = store.versions.current("default", digests["first"])
        done = generate(config, TARGET, DRAFT)  # back again: its own line goes on
        assert done.returncode == 0 and "The target changed" in done.stderr
        assert store.versions.lineage(store.versions.current("default", digests["first"]).id)[-1].number == 0
        assert before.id in {version.id for version in store.versions.list("default")} and len({*digests.values()}) == 3
        assert learned_from(store, "default") == {digests["first"]}
        kept = {one.target for one in store.samples.read(store.samples.recent(limit=1000))}
        assert kept == set(digests.values())
        assert store.samples.purge(target=digests["second"]).requests
