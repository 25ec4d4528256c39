"""A real vLLM (its CPU build, `make vllm`) whose draft has random weights learns from what it answers.

Run with `pytest -m vllm`. It takes some minutes, most of them vLLM's start.
"""

from __future__ import annotations

import gzip
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from osd.engines.base import EngineRefused
from osd.engines.selftest import selftest
from osd.engines.vllm.digest import weights_digest
from osd.engines.vllm.engine import VllmEngine
from storage.records import TokenKind
from storage.settings import load_settings
from storage.store import Store, open_store

pytestmark = pytest.mark.vllm
ROOT = Path(__file__).resolve().parents[2]
PYTHON = Path(os.environ.get("VLLM_PYTHON", ROOT / ".venv-vllm" / "bin" / "python"))
REFERENCE = ROOT.parent / "shared" / "models" / "reference"
PROMPTS = ROOT.parent / "shared" / "data" / "wikisql.jsonl.gz"
TOKEN = "the token of a test, long enough"
START = 600.0
"""Seconds until vLLM must be up, on a busy machine."""


def until(true: Callable[[], Any], seconds: float, process: subprocess.Popen[bytes] | None = None) -> None:
    """Wait for something that must come, while a process lives."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come"
        assert process is None or process.poll() is None, "the process has ended"
        time.sleep(0.2)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except OSError:
        return False


class Vllm:
    """A vLLM with the plugin."""

    def __init__(self, folder: Path, collector: int, draft: Path | None) -> None:
        self.port, self.folder = free_port(), folder
        self.url = f"http://127.0.0.1:{self.port}"
        command = [
            str(PYTHON), "-m", "vllm.entrypoints.launchers.api_server.entry", "--model", str(REFERENCE / "target"),
            "--served-model-name", "target", "--host", "127.0.0.1", "--port", str(self.port), "--dtype", "float32",
            "--max-model-len", "1024", "--enforce-eager", "--max-num-seqs", "16",
        ]  # fmt: skip
        if draft is not None:
            command += [
                "--speculative-config",
                json.dumps({"method": "draft_model", "model": str(draft), "num_speculative_tokens": 4}),
                "--per-request-spec-decode-metrics", "detailed", "--middleware", "osd_vllm.harvest.Harvest",
                "--worker-extension-cls", "osd_vllm.worker.OsdWorker",
            ]  # fmt: skip
        environment = {
            **os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_CI_ENV": "1", "VLLM_NO_USAGE_STATS": "1",
            "OMP_NUM_THREADS": "1", "VLLM_PLUGINS": "osd", "OSD_VLLM_TOKEN": TOKEN,
            "OSD_VLLM_ENGINE": "vllm-under-test",
            "OSD_VLLM_COLLECTOR": f"http://127.0.0.1:{collector}", "OSD_VLLM_FOLDERS": str(folder),
            "OSD_VLLM_SPOOL": str(folder / "spool"),
        }  # fmt: skip
        environment.pop("PYTHONPATH", None)
        self.log = open(folder / f"vllm-{self.port}.log", "wb")  # noqa: SIM115  (closed with the process)
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, env=environment, cwd=folder)
        until(lambda: answers(self.url + "/health"), START, self.process)

    def ask(self, prompt: str) -> list[int]:
        """Return the greedy ids of an answer."""
        body = {"model": "target", "prompt": prompt, "max_tokens": 48, "temperature": 0, "return_token_ids": True}
        data, kind = json.dumps(body).encode(), {"Content-Type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(self.url + "/v1/completions", data, kind)) as answer:
            ids: list[int] = json.loads(answer.read())["choices"][0]["token_ids"]
            return ids

    def ask_all(self, prompts: list[str]) -> list[list[int]]:
        with ThreadPoolExecutor(4) as pool:
            return list(pool.map(self.ask, prompts))

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(60)
        self.log.close()


def prompts(count: int, skip: int = 0) -> list[str]:
    with gzip.open(PROMPTS, "rt") as lines:
        some = [json.loads(next(lines))["prompt"] for _ in range(skip + count)][skip:]
    return [f"<|user|>\n{prompt}\n<|assistant|>\n" for prompt in some]


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reference draft with random weights."""
    folder = tmp_path_factory.mktemp("vllm") / "draft"
    torch.manual_seed(1)
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(REFERENCE / "draft")).float().save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (folder / file).write_bytes((REFERENCE / "draft" / file).read_bytes())
    return folder


@pytest.fixture(scope="module")
def collector_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def vllm(draft: Path, collector_port: int) -> Iterator[Vllm]:
    if not PYTHON.exists():
        pytest.skip(f"there is no vLLM at {PYTHON}; `make vllm` installs it")
    if not REFERENCE.exists():
        pytest.skip("the reference pair is not here")
    running = Vllm(draft.parent, collector_port, draft)
    yield running
    running.close()


@pytest.fixture(scope="module")
def home(draft: Path, vllm: Vllm, collector_port: int) -> Iterator[Store]:
    """A store with the engine attached, `osd attach` and `osd worker` running."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("OSD_")},
        "OSD_VLLM_TOKEN": TOKEN, "OSD_STORAGE__DIRECTORY": str(draft.parent / "store"),
        "OSD_ATTACH__PORT": str(collector_port), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT),
    }  # fmt: skip

    def osd(*words: str) -> list[str]:
        return [sys.executable, "-m", "osd.cli.main", *words]

    subprocess.run(osd("engines", "add", vllm.url, "--draft", "sql"), env=environment, check=True)
    running = [subprocess.Popen(osd(word), env=environment) for word in ("attach", "worker")]
    until(lambda: answers(f"http://127.0.0.1:{collector_port}/health"), 120, running[0])
    settings = load_settings(storage={"directory": str(draft.parent / "store")})
    with open_store(settings) as store:
        yield store
    for process in running:
        process.terminate()
        process.wait(60)


def test_a_random_draft_learns_and_no_answer_changes(vllm: Vllm, home: Store, draft: Path) -> None:
    selftest(VllmEngine(vllm.url, TOKEN))
    served = vllm.ask_all(prompts(160))
    until(lambda: (rows := home.outcomes.acceptance()) and rows[0].requests >= 160, 120)
    until(lambda: home.versions.current("sql").number >= 1, 300)
    until(lambda: home.versions.serving("sql").get("vllm-under-test") == home.versions.current("sql").id, 60)
    served += vllm.ask_all(prompts(40, skip=160))
    until(lambda: sum(row.requests for row in home.outcomes.acceptance()) >= 200, 120)
    by_version = {row.by["version"]: row for row in home.outcomes.acceptance(by=["version"])}
    root = home.versions.lineage(home.versions.current("sql").id)[-1].id
    first, last = by_version[root], by_version[home.outcomes.recent(limit=1)[0].draft_version]
    assert first.draft_acceptance_rate is not None and first.draft_acceptance_rate < 0.05
    assert last.draft_acceptance_rate is not None and last.draft_acceptance_rate > 0.3
    plain = Vllm(draft.parent, 1, None)
    try:
        assert plain.ask_all(prompts(200)) == served
    finally:
        plain.close()


def test_refused_tokens_are_those_that_the_draft_would_have_drafted(vllm: Vllm, home: Store) -> None:
    ids = [one.request_id for one in home.outcomes.recent(limit=20)]
    samples = home.samples.read(ids)
    rejected = sum(int((one.kinds == TokenKind.REJECTED).sum()) for one in samples)
    counted = sum(one.rejections for one in home.outcomes.recent(limit=20) if one.request_id in ids)
    assert 0 < rejected <= counted
    for one in samples:
        at = one.kinds == TokenKind.REJECTED
        assert (one.drafted[at] != one.tokens[one.positions[at]]).all()


def test_traps_are_refused_and_nothing_is_changed(vllm: Vllm, draft: Path) -> None:
    engine = VllmEngine(vllm.url, TOKEN)
    before, said = engine.served(), vllm.ask(prompts(1)[0])
    folder = draft.parent / "store" / "wrong"
    for what, change in {
        "not finite": lambda tensors: tensors["model.norm.weight"].fill_(float("nan")),
        "a shape": lambda tensors: tensors.update({"model.norm.weight": torch.ones(3)}),
        "a name": lambda tensors: tensors.update({"model.more.weight": torch.ones(3)}),
    }.items():
        copied = folder / what
        copied.mkdir(parents=True)
        (copied / "config.json").write_bytes((draft / "config.json").read_bytes())
        tensors = {name: tensor.clone() for name, tensor in _tensors(draft).items()}
        change(tensors)
        save_file(tensors, copied / "model.safetensors", {"format": "pt"})
        with pytest.raises(EngineRefused):
            engine.publish(copied, weights_digest(copied), "wrong")
    assert engine.served() == before and vllm.ask(prompts(1)[0]) == said


def _tensors(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")
