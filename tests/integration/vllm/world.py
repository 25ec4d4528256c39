"""Two replicas of a real vLLM, a store, and what attends to them: what operations are tried on."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from benchmarks.vllm.server import osd_command, random_draft
from osd.attached.vllm.plugin.osd_vllm.weights import weights_digest
from osd.demo import DRAFT
from osd.demo.runner.circle import own_settings
from osd.demo.runner.process import environment, save_settings
from storage.settings import Settings
from storage.store import Store, open_store
from storage.versions.weights import copy_files, servable_files
from tests.integration.vllm.conftest import PYTHON
from tests.integration.vllm.replicas import PATIENCE, TOKEN, Replica, Restartable, osd_process

PORTS = range(int(os.environ.get("VLLM_PORTS", "8200")), 9999)
"""Ports of replicas must be the same after a restart, so they are none that the system gives to others meanwhile."""
LEASE_SECONDS = 5.0


@dataclass
class World:
    """Everything that runs."""

    folder: Path
    config: Path
    store: Store
    replicas: list[Replica]
    random: Path
    """The draft that the replicas are started with: random weights."""
    good: Path
    """A draft that was trained."""
    attach: Restartable
    others: list[Restartable] = field(default_factory=list)
    """Further processes, ended with the rest."""

    def run(self, word: str) -> Restartable:
        """Start `osd attach` or a worker beside the rest."""
        self.others.append(osd_process(word, self.config, self.folder))
        return self.others[-1]

    def osd(self, *words: str) -> str:
        """Run a command of osd; return what it prints."""
        secret = environment() | {"OSD_VLLM_TOKEN": TOKEN, "COLUMNS": "250"}
        done = subprocess.run(osd_command(self.config, *words), env=secret, text=True, capture_output=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def add(self, replica: Replica, draft: str) -> None:
        """Attach a replica as a server of a draft, and wait until it serves the draft's current version."""
        self.osd("engines", "add", replica.url, "--draft", draft)
        until(lambda: self.settled(replica, draft), PATIENCE)

    def settled(self, replica: Replica, draft: str) -> bool:
        """Return whether a replica serves the draft's current version, by the ledger and by its own word."""
        current = self.store.versions.current(draft)
        serving = self.store.versions.serving(current.draft).get(replica.name)
        return serving == current.id and replica.serves() == weights_digest(self.store.versions.folder(current))

    def teach(self, draft: str, *replicas: Replica) -> None:
        """Have these replicas, and no others, draft with the trained draft, unless a later version than number 0 serves
        already."""
        if self.store.versions.current(draft).number == 0:
            version = self.stage(draft, self.good)
            self.store.versions.promote(version)
            until(lambda: self.store.canaries.list(draft), PATIENCE)
            self.store.versions.promote(version)  # by hand, for all
        until(lambda: all(self.settled(replica, draft) for replica in replicas), PATIENCE)

    def stage(self, draft: str, folder: Path, noise: float = 0.0) -> str:
        """Enter a version with the folder's weights, with noise in units of each tensor's own spread; return its id."""

        def write(aside: Path) -> None:
            copy_files(folder, servable_files(folder), aside)
            torch.manual_seed(0)
            for path in aside.glob("*.safetensors"):
                tensors = load_file(path)
                noisy = {name: one + noise * one.std() * torch.randn_like(one) for name, one in tensors.items()}
                save_file(noisy, path, {"format": "pt", "made": str(time.time_ns())})

        return self.store.versions.stage(draft, self.store.versions.current(draft).id, "full", write).id


@contextmanager
def world(folder: Path, python: Path = PYTHON, count: int = 2, **replicas: str) -> Iterator[World]:
    """Start replicas and `osd attach`; nothing is attached yet. ``replicas``: variables of their environment."""
    ports = free_ports(count + 1)
    settings = own_settings(
        Settings(), folder / "data",
        attach={"port": ports[0], "admin_port": "off", "poll_seconds": 0.3, "lease_seconds": LEASE_SECONDS},
        learn={"interval_requests": 32}, gate={"watch_requests": 32}, retention={"versions": {"served": "all"}},
        fleet={"canary": True, "canary_requests": 32, "heartbeat_seconds": 1.0, "gone_seconds": LEASE_SECONDS},
    )  # fmt: skip
    config, draft = save_settings(settings, folder / "osd.toml"), random_draft(DRAFT, folder / "draft")
    good = folder / "good"
    copy_files(DRAFT, servable_files(DRAFT), good)
    running: list[Restartable] = []
    with open_store(settings) as store:
        try:
            for number, port in enumerate(ports[1:], start=1):
                running.append(Replica(f"gpu-{number}", port, python, folder, draft, ports[0], **replicas))
            vllms = [one for one in running if isinstance(one, Replica)]
            running.append(osd_process("attach", config, folder))
            for one in vllms:
                until(one.up, PATIENCE, one.process)
            made = World(folder, config, store, vllms, draft, good, running[-1])
            made.others = running
            yield made
        finally:
            for process in running:
                process.close()


def until(true: Callable[[], Any], seconds: float, process: subprocess.Popen[bytes] | None = None) -> None:
    """Wait for something that must come, while a process lives."""
    end = time.monotonic() + seconds
    while not true():
        assert process is None or process.poll() is None, "the process has ended"
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.2)


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on."""
    found: list[int] = []
    for port in PORTS:
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise AssertionError("no port is free")
