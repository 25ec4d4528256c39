"""The fault run: requests stream through a real engine into PostgreSQL, S3 and Redis, while a seeded script kills
trainers and cuts wires; afterwards nothing that was finished is missing, doubled or damaged.

    python -m tests.integration.run --seconds 600 --faults 30 --seed 1

Real: the engine with the shipped pair, `python -m trainer worker`, PostgreSQL, Redis. S3 is moto's server. Wires are
proxies that are killed (tests.integration.proxy). Prints one line of JSON; the exit status is 1 where a promise was
broken."""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
from sqlalchemy import make_url

from osd.demo import DRAFT, TARGET
from storage.records import RunState, VersionState
from storage.settings import load_settings
from storage.sql import database
from storage.store import Store, open_store
from tests.integration.proxy import Proxy
from tests.integration.tokens import digest
from tests.storage.conftest import new_postgres
from tests.storage.s3 import BUCKET, s3_server
from tests.storage.s3 import environment as s3_environment
from tests.trainer.processes import PATIENCE, ROOT, environment, wait_for, write_config

SUMS = ("requests", "rounds", "drafted", "accepted", "rejections", "emitted", "prompt_tokens")
KINDS = ("worker", "trainer", "broker", "database", "s3")
LONGEST_CUT = 6.0


class Trainer:
    """A worker that is started anew when it was killed."""

    def __init__(self, config: Path, endpoint: str) -> None:
        self._command = [sys.executable, "-m", "trainer", "worker", "--config", str(config)]
        self._environment = environment() | s3_environment(endpoint)
        self._log = config.parent / "worker.log"
        self.process: subprocess.Popen[bytes]
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, cwd=ROOT, env=self._environment, stdout=log, stderr=log, start_new_session=True
            )

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def kill_and_restart(self) -> None:
        self.kill()
        self.start()

    def kill_child(self) -> None:
        """The process that trains; its parent makes another."""
        if self.process.poll() is not None:  # it could not start while the database was away
            self.start()
        with suppress(psutil.Error):
            for child in psutil.Process(self.process.pid).children():
                child.kill()


def config(home: Path, url: str, top: str, redis: int) -> Path:
    """The osd.toml of a machine of its own."""
    home.mkdir()
    kept = {
        "directory": str(home / "data"), "cache": str(home / "cache"), "url": url, "samples": f"{top}/samples",
        "weights": f"{top}/weights", "flush_requests": 8, "flush_seconds": 0.5,
    }  # fmt: skip
    serve = {"target": str(TARGET), "draft": str(DRAFT), "max_batch": 4, "threads": 1, "swap_poll_seconds": 0.2}
    learn = {"interval_requests": 8, "max_requests": 32, "max_age_seconds": 5.0, "replay_requests": 8, "epochs": 1}
    runs = {
        "poll_seconds": 0.3, "lease_seconds": 5.0, "device": "cpu", "nice": 0,
        "broker": f"redis://127.0.0.1:{redis}/9",
    }  # fmt: skip
    return write_config(home / "osd.toml", {"storage": kept, "serve": serve, "learn": learn, "trainer": runs})


def faults(seconds: float, count: int, seed: int) -> list[tuple[float, str, float]]:
    """When, what, and for how many seconds; each kind about as often."""
    rng = random.Random(seed)
    kinds = [KINDS[i % len(KINDS)] for i in range(count)]
    rng.shuffle(kinds)
    times = sorted(rng.uniform(0, 0.9 * seconds) for _ in kinds)
    longest = min(LONGEST_CUT, seconds / 12)
    return [(at, kind, rng.uniform(0.2, longest)) for at, kind in zip(times, kinds, strict=True)]


def cut(wire: Proxy, seconds: float) -> None:
    wire.cut()
    time.sleep(seconds)
    wire.mend()


def check(store: Store, log: list[dict[str, Any]]) -> dict[str, Any]:
    """Every promise by its name, and whether it was kept."""
    ids = [each["id"] for each in log]
    store.sweep()
    kept = store.samples.recent(limit=1 << 40)
    read = {each.request_id: each for each in store.samples.read(ids)}
    totals = Counter(dict.fromkeys(SUMS, 0))
    for each in log:
        for outcome in each["outcomes"]:
            totals.update({name: outcome[name] for name in SUMS})
    (row,) = store.outcomes.acceptance()
    judged = [run for run in store.runs.list(limit=100_000) if run.state in (RunState.PUBLISHED, RunState.REJECTED)]
    claims = Counter(each for run in judged for each in run.request_ids)
    versions = store.versions.list()
    for version in versions:
        store.versions.verify(version)
    return {
        "no request failed": all(each["why"] in ("stop", "length", "eos") for each in log),
        "every sample once": sorted(kept) == sorted(ids) and len(read) == len(ids),
        "every sample whole": all(
            digest(read[each["id"]].tokens) == each["digest"] for each in log if each["id"] in read
        ),
        "counters equal": {name: getattr(row, name) for name in SUMS} == dict(totals),
        "trained at most once": max(claims.values(), default=0) <= 1,
        "versions sound": all(version.state is not VersionState.QUARANTINED for version in versions),
        "none half-published": sum(v.state is VersionState.CANDIDATE for v in versions) <= 1,
    }


def run(seconds: float, count: int, seed: int, home: Path) -> dict[str, Any]:
    """Run and check; every promise under ``kept``."""
    with ExitStack() as stack:
        url = stack.enter_context(new_postgres())
        database.upgrade(url)
        real = stack.enter_context(s3_server(home))
        wires = {
            "database": Proxy(make_url(url).port or 5432), "s3": Proxy(urlsplit(real).port or 0), "broker": Proxy(6379)
        }  # fmt: skip
        for wire in wires.values():
            stack.enter_context(wire)
        endpoint = f"http://127.0.0.1:{wires['s3'].port}"
        cut_url = make_url(url).set(port=wires["database"].port).render_as_string(hide_password=False)
        top = f"s3://{BUCKET}/run"
        places = [config(home / name, cut_url, top, wires["broker"].port) for name in ("server", "trainer")]
        with (home / "engine.log").open("wb") as said:
            engine = subprocess.Popen(
                [sys.executable, "-m", "tests.integration.engine", str(places[0]), str(home / "finished.jsonl")],
                cwd=ROOT, env=environment() | s3_environment(endpoint), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=said,
            )  # fmt: skip
        stack.callback(engine.kill)
        assert engine.stdin and engine.stdout
        assert engine.stdout.readline() == b"serving\n", (home / "engine.log").read_text()[-3000:]
        trainer = Trainer(places[1], endpoint)
        stack.callback(trainer.kill)
        with open_direct(home, url, top, real) as store:
            wait_for(lambda: any(r.state in (RunState.PUBLISHED, RunState.REJECTED) for r in store.runs.list()))
            done = script(seconds, faults(seconds, count, seed), wires, trainer)
            assert engine.poll() is None, "the engine ended"
            engine.stdin.close()
            facts = json.loads(engine.stdout.readline())
            assert engine.wait(PATIENCE) == 0
            trainer.kill()
            log = [json.loads(line) for line in (home / "finished.jsonl").read_text().splitlines()]
            kept = check(store, log)
            kept["nothing lost"] = facts["dropped"] == facts["lost_outcomes"] == facts["left"] == 0
            states = Counter(each.state.value for each in store.runs.list(limit=100_000))
            published = store.versions.current("default").number
    return {
        "kept": kept, "faults": dict(done), "requests": len(log), "runs": dict(states), "current": published, **facts
    }  # fmt: skip


def open_direct(home: Path, url: str, top: str, endpoint: str) -> Store:
    """The same store, without the wires that are cut."""
    os.environ.update(s3_environment(endpoint))
    kept = {"directory": home / "check", "cache": home / "check-cache", "url": url}
    return open_store(load_settings(storage=kept | {"samples": f"{top}/samples", "weights": f"{top}/weights"}))


def script(
    seconds: float, plan: list[tuple[float, str, float]], wires: Mapping[str, Proxy], trainer: Trainer
) -> Counter[str]:
    """Do what was planned; how often what was done."""
    began, done = time.monotonic(), Counter[str]()
    acts: dict[str, Callable[[float], None]] = {
        "worker": lambda _: trainer.kill_and_restart(),
        "trainer": lambda _: trainer.kill_child(),
    } | {name: lambda length, wire=wire: cut(wire, length) for name, wire in wires.items()}  # type: ignore[misc]
    for at, kind, length in plan:
        time.sleep(max(0.0, began + at - time.monotonic()))
        print(f"{time.monotonic() - began:6.1f} s  {kind}", file=sys.stderr, flush=True)
        acts[kind](length)
        done[kind] += 1
    time.sleep(max(0.0, began + seconds - time.monotonic()))
    return done


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--faults", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--home", type=Path, help="Keep everything here.")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="osd-faults-") as temporary:
        home = asked.home or Path(temporary)
        home.mkdir(exist_ok=True)
        result = run(asked.seconds, asked.faults, asked.seed, home)
    print(json.dumps(result))
    return 0 if all(result["kept"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
