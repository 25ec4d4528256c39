"""Replicas of a real vLLM, `osd attach` and a worker beside them, that can be killed at any moment and come back; and
clients that stream from them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from itertools import pairwise
from pathlib import Path
from threading import Event, Lock, Thread

from benchmarks.vllm.server import (
    PLUGIN,
    WORKER,
    api_server,
    cpu_variables,
    osd_command,
    plugin_variables,
    speculation,
)  # fmt: skip
from osd.attached.base import EngineError
from osd.attached.vllm.engine import VllmEngine
from osd.demo import TARGET
from osd.demo.prompts import prompts as shipped
from osd.demo.runner.process import command, environment
from osd.models.vocabulary import load_tokenizer
from osd.prompts import encode
from tests.integration.vllm.conftest import TOKEN
from tests.support.fake_vllm import PLUGIN_FOLDER

PATIENCE = 600.0
"""Seconds until what must come has come, on a busy machine."""
Tokens = tuple[int, ...]


class Restartable:
    """A process that is started again after it was killed. It says everything into one log."""

    def __init__(self, name: str, words: Sequence[str], log: Path, variables: dict[str, str]) -> None:
        self.name, self._words, self._log, self._variables = name, words, log, variables
        self.kills = 0
        self.start()

    def start(self) -> None:
        """Start it."""
        with self._log.open("ab") as out:
            self.process = subprocess.Popen(
                self._words, stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True,
                env=environment() | self._variables,
            )  # fmt: skip

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it and to all that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """Kill all of it (SIGKILL)."""
        self.signal(signal.SIGKILL)
        self.process.wait()
        self.kills += 1

    def close(self) -> None:
        """End it in order, then kill what is left."""
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(30)
        self.signal(signal.SIGKILL)
        self.process.wait()


class Replica(Restartable):
    """A vLLM with osd's plugin at a port of its own."""

    def __init__(
        self, name: str, port: int, python: Path, folder: Path, draft: Path, collector: int, **variables: str
    ) -> None:
        """``folder``: drafts are loaded from below it."""
        self.url = f"http://127.0.0.1:{port}"
        self.engine = VllmEngine(self.url, TOKEN)
        words = [*api_server(python, TARGET), "--port", str(port), *speculation(draft), *PLUGIN, *WORKER]
        own = cpu_variables() | plugin_variables(folder, TOKEN, f"http://127.0.0.1:{collector}") | {
            "OSD_VLLM_ENGINE": name, "OSD_VLLM_SPOOL": str(folder / f"spool-{name}"),
            "PYTHONPATH": str(PLUGIN_FOLDER), "VLLM_CPU_KVCACHE_SPACE": "1",
            "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
        }  # fmt: skip
        self._spool = folder / f"spool-{name}"
        super().__init__(name, words, folder / f"{name}.log", own | variables)

    def up(self) -> bool:
        """Return whether it serves."""
        try:
            with urllib.request.urlopen(self.url + "/health", timeout=5):
                return True
        except (OSError, HTTPException):
            return False

    def serves(self) -> str | None:
        """Return the digest of the draft that all ranks have; None while it is not reached."""
        try:
            digests = {rank.sha256 for rank in self.engine.served()}
        except EngineError:
            return None
        return digests.pop() if len(digests) == 1 else "different ones"

    def harvest(self) -> dict[str, int]:
        """Return the plugin's counts."""
        request = urllib.request.Request(self.url + "/v1/osd/info", headers={"X-OSD-Token": TOKEN})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return dict(json.load(answer)["harvest"])

    def delivered(self) -> bool:
        """Return whether every answer was handed over, or dropped and counted. What a killed process had spooled counts
        as sent by the next one, so that this alone is looked at where nothing changes any more."""
        counts = self.harvest()
        settled = counts.get("sent", 0) + counts.get("dropped", 0) >= counts.get("taken", 0)
        if not settled or any(self._spool.glob("*.json.gz")):
            return False
        time.sleep(1.0)  # longer than an answer waits for others
        return self.harvest() == counts


def osd_process(name: str, config: Path, folder: Path) -> Restartable:
    """Start a trainer, by the name ``worker``, or `osd attach`; one of another name listens at a port of its own."""
    words = command("worker", "--config", config) if name == "worker" else osd_command(config, "attach")
    own = {"OSD_VLLM_TOKEN": TOKEN, "OMP_NUM_THREADS": "1"}
    own |= {} if name in ("attach", "worker") else {"OSD_ATTACH__PORT": "0"}
    return Restartable(name, words, folder / f"{name}.log", own)


@dataclass(frozen=True, slots=True)
class Streamed:
    """An answer as its client saw it."""

    replica: str
    prompt: Tokens
    tokens: Tokens
    began: float
    """Seconds of ``time.monotonic``, as ``times`` are."""
    times: tuple[float, ...]
    """When chunks with tokens came."""

    @property
    def gaps(self) -> list[tuple[float, float]]:
        """Return (when it ended, seconds) of every gap between chunks."""
        return [(b, b - a) for a, b in pairwise(self.times)]


def stream(replica: Replica, prompt: Tokens, most: int, route: str | None = None, *, learn: bool = True) -> Streamed:
    """Stream a greedy answer; ``learn``: whether it may be harvested. Raises OSError, HTTPException or ValueError for
    one that is not whole."""
    body = {"prompt": list(prompt), "max_tokens": most, "temperature": 0, "stream": True, "return_token_ids": True}
    headers = {"Content-Type": "application/json"} | ({"X-OSD-Route": route} if route else {})
    headers |= {} if learn else {"X-OSD-Learn": "false"}
    request = urllib.request.Request(replica.url + "/v1/completions", json.dumps(body).encode(), headers)
    began, ended = time.monotonic(), False
    tokens: list[int] = []
    times: list[float] = []
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        for line in answer:
            if line.startswith(b"data: {"):
                said = json.loads(line[6:])
                if said.get("error"):
                    raise ValueError(said["error"])
                part = said["choices"][0]
                tokens += part.get("token_ids") or []
                ended = ended or bool(part.get("finish_reason"))
                times.append(time.monotonic())
    if not ended:
        raise ValueError("the stream ended before its answer did")
    return Streamed(replica.name, prompt, tuple(tokens), began, tuple(times))


def different(domain: str, count: int, seed: int = 0) -> Iterator[Tokens]:
    """Yield different prompts of a domain that ships with osd, as the target reads them."""
    tokenizer = load_tokenizer(TARGET)
    return (encode(tokenizer, text) for text in shipped(domain, count, seed))


@dataclass
class Clients:
    """Clients that each stream one answer after another until they are stopped; no prompt is asked twice, not even
    where its answer broke off."""

    replicas: Sequence[Replica]
    prompts: Iterator[Tokens]
    count: int = 4
    most: int = 32
    route: str | None = None
    answers: list[Streamed] = field(default_factory=list)
    broken: int = 0
    """Answers that broke off, or that a replica that was down refused."""
    _stop: Event = field(default_factory=Event)
    _lock: Lock = field(default_factory=Lock)
    _threads: list[Thread] = field(default_factory=list)

    def __enter__(self) -> Clients:
        self._threads = [Thread(target=self._ask, args=(number,), daemon=True) for number in range(self.count)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def since(self, moment: float) -> list[Streamed]:
        """Return the answers that began after a moment."""
        return [one for one in list(self.answers) if one.began > moment]

    def _ask(self, number: int) -> None:
        while not self._stop.is_set():
            replica = self.replicas[number % len(self.replicas)]
            number += 1
            with self._lock:
                prompt = next(self.prompts, None)
            if prompt is None:
                return
            try:
                self.answers.append(stream(replica, prompt, self.most, self.route))
            except (OSError, HTTPException, ValueError, LookupError):
                self.broken += 1
                time.sleep(0.3)
