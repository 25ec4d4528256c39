"""A real vLLM with osd's plugin, `osd attach` beside it, a draft that knows nothing: for the bench, and for tests."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.servers import Other, Up, other_server, vllm_command
from osd.bench.serve.process import running, wait_for
from storage.versions.feature_kinds import speculative_config

ENGINE = "vllm"
GAMMA = 4
LISTENS = re.compile(r"Taking answers at (http://[^\s,]+)")
PLUGIN = ("--middleware", "osd_vllm.harvest.Harvest", "--per-request-spec-decode-metrics", "detailed")
WORKER = ("--worker-extension-cls", "osd_vllm.worker.OsdWorker")


@contextmanager
def vllm_server(
    python: Path, target: Path, log: Path, options: Sequence[str] = (), variables: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Yield the URL of a vLLM, as :func:`vllm_process` starts it."""
    with vllm_process(python, target, log, options, variables) as up:
        yield up.address.url


@contextmanager
def vllm_process(
    python: Path, target: Path, log: Path, options: Sequence[str] = (), variables: Mapping[str, str] | None = None
) -> Iterator[Up]:
    """Yield a vLLM that serves the target in float32, while it lives. Raises StoreError, with what it said, where it
    does not start."""
    command = [*api_server(python, target), *options, "--port"]
    with other_server(Other("vLLM", command, {}, variables=cpu_variables() | dict(variables or {})), log) as up:
        yield up


def api_server(python: Path, target: Path) -> list[str]:
    """Return the command line of a vLLM that serves the target in float32 on this machine, but for its port."""
    return [*vllm_command(python, str(target), "float32", 1024, 16), "--enforce-eager"]


def cpu_variables() -> dict[str, str]:
    """Return the variables of the environment of a vLLM on the CPU."""
    return {
        "VLLM_CPU_CI_ENV": "1", "PYTHONPATH": "", "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else every vLLM of a machine binds its threads to the first cores
    }  # fmt: skip


@contextmanager
def attach_process(config: Path, log: Path, variables: Mapping[str, str]) -> Iterator[str]:
    """Yield the URL at which `osd attach` takes answers, while it lives. Raises StoreError where it does not start."""
    with running(osd_command(config, "attach"), log, variables) as process:
        found = wait_for("osd attach", process, log, lambda: LISTENS.search(log.read_text(errors="replace")))
        yield found[1]


def osd_command(config: Path, *words: str) -> list[str]:
    """Return the command line of `osd` with a file of settings."""
    return [sys.executable, "-P", "-m", "osd.cli.main", "--config", str(config), *words]


def speculation(draft: Path | None, method: str = "draft_model") -> tuple[str, str]:
    """Return the option of speculation with a draft, or with what the target brings."""
    return "--speculative-config", json.dumps(speculative_config(method, None if draft is None else str(draft), GAMMA))


def plugin_variables(folder: Path, token: str, collector: str) -> dict[str, str]:
    """Return what the plugin is told: to harvest everything. Drafts lie below the folder."""
    return {
        "VLLM_PLUGINS": "osd", "OSD_VLLM_TOKEN": token, "OSD_VLLM_ENGINE": ENGINE, "OSD_VLLM_FOLDERS": str(folder),
        "OSD_VLLM_COLLECTOR": collector, "OSD_VLLM_SPOOL": str(folder / "spool"), "OSD_VLLM_SHOW_METRICS": "1",
        "OSD_VLLM_POSITIONS": "0",
    }  # fmt: skip


def random_draft(like: Path, folder: Path) -> Path:
    """Write a draft of the same form with random weights; return its folder."""
    torch.manual_seed(1)
    models: Any = AutoModelForCausalLM
    models.from_config(AutoConfig.from_pretrained(like)).float().save_pretrained(folder)
    for file in like.glob("tokenizer*"):
        (folder / file.name).write_bytes(file.read_bytes())
    return folder
