"""kill -9 of `osd attach`, the worker and replicas of a real vLLM at random moments, under traffic
(`VLLM_KILL_SECONDS=600 pytest -m vllm tests/integration/vllm/test_operations.py`).

Two replicas of one draft that begins with random weights, new versions tried on one of them first. Afterwards every
answer is in the store at most once and as its client had it, no replica ever drafted with anything that is not a
version of the ledger, and both end on the current version."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

from osd.attached.vllm.plugin.osd_vllm.weights import weights_digest
from storage.errors import OsdError
from storage.records import RequestSamples
from storage.store import Store
from storage.versions.canaries import CanaryState
from tests.integration.vllm.replicas import PATIENCE, Clients, Replica, Restartable, Streamed, different, stream
from tests.integration.vllm.world import PYTHON, World, until, world

DRAFT = "sql"
PROMPTS = 20_000
COMPARED = 48
"""Answers that are asked once more at the end."""


def run(folder: Path, seconds: float, seed: int, mean: float) -> dict[str, Any]:
    """Kill for so many seconds, one process every ``mean`` seconds; return what was found."""
    folder.mkdir(parents=True, exist_ok=True)
    with world(folder, PYTHON) as made, ThreadPoolExecutor(1) as pool:
        for replica in made.replicas:
            made.add(replica, DRAFT)
        worker, over = made.run("worker"), Event()
        seen = pool.submit(_watch, made.replicas, over)
        with Clients(made.replicas, different(DRAFT, PROMPTS)) as clients:
            killed = _kill(made, worker, seconds, random.Random(seed), mean)
            worker.close()
            for replica in made.replicas:
                until(replica.up, PATIENCE, replica.process)
            until(lambda: _at_rest(made), PATIENCE)
        over.set()
        for replica in made.replicas:
            until(replica.delivered, PATIENCE)
        first = clients.answers[:COMPARED]
        again = [stream(made.replicas[0], one.prompt, clients.most, learn=False).tokens for one in first]
        changed = sum(now != one.tokens for now, one in zip(again, clients.answers, strict=False))
        return _found(made.store, clients, seen.result(), changed, killed)


def _kill(made: World, worker: Restartable, seconds: float, chance: random.Random, mean: float) -> Counter[str]:
    """Kill one of the processes that are up, and start it again at once; return how often each was killed."""
    killed: Counter[str] = Counter()
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, chance.uniform(0.2 * mean, 1.8 * mean)))
        kinds: dict[str, Sequence[Restartable]] = {
            "attach": [made.attach], "worker": [worker], "replica": [one for one in made.replicas if one.up()],
        }  # fmt: skip
        kind = chance.choice([kind for kind, some in kinds.items() if some])
        one = chance.choice(kinds[kind])
        one.kill()
        one.start()
        killed[kind] += 1
    return killed


def _watch(replicas: Sequence[Replica], over: Event) -> set[str]:
    """Return every digest that a replica was seen to draft with."""
    seen: set[str] = set()
    while not over.wait(0.3):
        seen.update(digest for replica in replicas if (digest := replica.serves()))
    return seen


def _at_rest(made: World) -> bool:
    """Return whether no version is on trial and every replica serves the current one."""
    try:
        trials = [one for one in made.store.canaries.list(DRAFT) if one.state is CanaryState.WATCHING]
        return not trials and all(made.settled(replica, DRAFT) for replica in made.replicas)
    except OsdError:
        return False


def _found(store: Store, clients: Clients, seen: set[str], changed: int, killed: Counter[str]) -> dict[str, Any]:
    outcomes = Counter(one.request_id for one in store.outcomes.recent(limit=PROMPTS))
    kept = store.samples.read(list(outcomes))
    line = store.versions.current(DRAFT).draft
    versions = store.versions.list(line)
    known = {weights_digest(store.versions.folder(version)) for version in versions}
    for version in versions:
        store.versions.verify(version)
    broken = {
        "harvested twice": sum(count > 1 for count in outcomes.values()) + _doubled(kept),
        "counted twice": abs(sum(row.requests for row in store.outcomes.acceptance()) - len(outcomes)),
        "not what the client had": _differing(kept, clients.answers),
        "drafted with no version of the ledger": len(seen - known),
        "answers that changed": changed,
    }
    trials = Counter(one.state.value for one in store.canaries.list(line, limit=1000))
    return {
        "killed": dict(killed), "answers": len(clients.answers), "broke_off": clients.broken,
        "harvested": len(outcomes), "samples": len(kept), "versions": len(versions), "canaries": dict(trials),
        "states": dict(Counter(version.state.value for version in versions)),
        "broken_promises": {what: count for what, count in broken.items() if count},
    }  # fmt: skip


def _doubled(kept: Sequence[RequestSamples]) -> int:
    """Count prompts that were kept more than once: none was asked twice while it was counted."""
    return sum(count > 1 for count in Counter(_prompt(one) for one in kept).values())


def _differing(kept: Sequence[RequestSamples], answers: Sequence[Streamed]) -> int:
    had = {one.prompt: one.tokens for one in answers}
    return sum(tuple(one.tokens[one.prompt_len :].tolist()) != had[_prompt(one)] for one in kept if _prompt(one) in had)


def _prompt(one: RequestSamples) -> tuple[int, ...]:
    return tuple(one.tokens[: one.prompt_len].tolist())
