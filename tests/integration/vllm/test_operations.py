"""Operating vLLMs that osd is attached to: publishing under load, canaries, two publishers, a collector that is away,
kill -9. Each prints its figures."""

from __future__ import annotations

import itertools
import json
import os
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from osd.attached.vllm.plugin.osd_vllm.weights import weights_digest
from storage.records import VersionState
from storage.versions.canaries import CanaryState
from tests.integration.vllm import kills
from tests.integration.vllm.replicas import PATIENCE, Clients, Streamed, different, stream
from tests.integration.vllm.world import LEASE_SECONDS, PYTHON, World, until, world

pytestmark = pytest.mark.vllm
AWAY_SECONDS = float(os.environ.get("VLLM_AWAY_SECONDS", "60"))
KILL_SECONDS = float(os.environ.get("VLLM_KILL_SECONDS", "60"))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Two replicas, none of them attached yet; 1 MB of their disk may keep what the collector does not take."""
    if not PYTHON.exists():
        pytest.skip(f"there is no vLLM at {PYTHON}; `make vllm` installs it")
    with world(tmp_path_factory.mktemp("operations"), OSD_VLLM_SPOOL_MB="1") as made:
        yield made


def told(name: str, **figures: object) -> None:
    """Print figures, for the log."""
    print(f"\n{name}: {json.dumps(figures)}", flush=True)


def quantiles(answers: list[Streamed]) -> dict[str, float]:
    """Return milliseconds to the first chunk and between chunks: median, 99th of 100, longest."""
    first = [1000 * (one.times[0] - one.began) for one in answers]
    gaps = [1000 * gap for one in answers for _, gap in one.gaps]
    return {
        f"{name}_{what}": round(float(value), 1)
        for name, values in (("first", first), ("gap", gaps))
        for what, value in (
            ("p50", np.percentile(values, 50)),
            ("p99", np.percentile(values, 99)),
            ("max", max(values)),
        )
    }


def test_publishing_under_four_streams_changes_no_token(pair: World) -> None:
    replica, prompts = pair.replicas[0], list(different("sql", 24, seed=1))

    def ask() -> list[Streamed]:
        with ThreadPoolExecutor(4) as pool:
            return list(pool.map(lambda prompt: stream(replica, prompt, 160), prompts))

    before, published, asked = ask(), [], None
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask)
        for folder in itertools.cycle((pair.good, pair.random)):
            if asked.done():
                break
            began = time.monotonic()
            replica.engine.publish(folder, weights_digest(folder), folder.name)
            published.append((began, time.monotonic()))
            time.sleep(1.0)
    during = asked.result()
    assert [one.tokens for one in during] == [one.tokens for one in before]
    assert len(published) >= 2
    gaps = [gap for one in during for gap in one.gaps]
    near = [gap for end, gap in gaps if any(end - gap < done and began < end for began, done in published)]
    told(
        "publishing", versions=len(published), longest_gap_ms=round(1000 * max(near), 1),
        call_ms=round(1000 * statistics.median(done - began for began, done in published), 1),
        **quantiles(during), without=quantiles(before),
    )  # fmt: skip
    replica.engine.publish(pair.random, weights_digest(pair.random), "random")


def test_two_publishers_take_turns_by_a_lease(pair: World) -> None:
    for replica in pair.replicas:
        pair.add(replica, "sql")
    second = pair.run("attach-again")
    holders = {engine.name: engine.holder for engine in pair.store.engines.list()}
    time.sleep(2 * LEASE_SECONDS)
    assert {engine.name: engine.holder for engine in pair.store.engines.list()} == holders
    pair.attach.kill()
    killed = time.monotonic()
    until(lambda: all(one.holder not in (None, *holders.values()) for one in pair.store.engines.list()), PATIENCE)
    told("the second took over", seconds=round(time.monotonic() - killed, 1), lease_seconds=LEASE_SECONDS)
    version = pair.stage("sql", pair.good)
    pair.store.versions.promote(version)
    until(lambda: pair.store.canaries.list("sql"), PATIENCE)
    pair.store.versions.promote(version)  # by hand, for all: answers go to the first one's address, where nobody is
    until(lambda: all(pair.settled(replica, "sql") for replica in pair.replicas), PATIENCE)
    assert pair.store.versions.current("sql").id == version
    second.kill()
    pair.attach.start()
    until(lambda: all(pair.settled(replica, "sql") for replica in pair.replicas), PATIENCE)


def test_a_version_is_tried_on_one_replica_and_a_worse_one_taken_back(pair: World) -> None:
    for replica in pair.replicas:
        pair.add(replica, "sql")
    pair.teach("sql", *pair.replicas)
    good = pair.store.versions.current("sql").id
    worse = pair.stage("sql", pair.good, noise=2.0)
    digest = weights_digest(pair.store.versions.folder(pair.store.versions.get(worse)))
    pair.store.versions.promote(worse)
    began = time.monotonic()
    had: set[str] = set()
    with Clients(pair.replicas, different("sql", 2000, seed=3)):

        def settled() -> bool:
            had.update(replica.name for replica in pair.replicas if replica.serves() == digest)
            trials = [one.state for one in pair.store.canaries.list("sql") if one.version == worse]
            return bool(trials) and trials[0] is not CanaryState.WATCHING

        until(settled, PATIENCE)
        tried = next(one for one in pair.store.canaries.list("sql") if one.version == worse)
        until(lambda: all(pair.settled(replica, "sql") for replica in pair.replicas), PATIENCE)
    assert tried.state is CanaryState.TAKEN_BACK and pair.store.versions.current("sql").id == good
    assert len(had) == 1
    assert pair.store.versions.get(worse).state is VersionState.ROLLED_BACK
    told("a worse canary", seconds=round(time.monotonic() - began, 1), tried_on=sorted(had), facts=dict(tried.facts))


def test_two_replicas_with_a_draft_each_and_a_route_each(pair: World) -> None:
    first, second = pair.replicas
    pair.add(first, "sql")
    pair.teach("sql", first)
    pair.add(second, "sums")
    sums = pair.stage("sums", pair.good)
    pair.store.versions.promote(sums)
    until(lambda: pair.settled(second, "sums"), PATIENCE)
    worse = pair.stage("sql", pair.good, noise=2.0)
    digest = weights_digest(pair.store.versions.folder(pair.store.versions.get(worse)))
    pair.store.versions.promote(worse)
    worker, began = pair.run("worker"), time.monotonic()
    seen: set[str] = set()
    clients = (
        Clients([first], different("sql", 2000, seed=4), 2, route="sql"),
        Clients([second], different("arithmetic", 2000, seed=4), 2, route="sums"),
    )
    with clients[0], clients[1]:

        def taken_back() -> bool:
            seen.update(replica.name for replica in pair.replicas if replica.serves() == digest)
            return pair.store.versions.get(worse).state is VersionState.ROLLED_BACK

        until(taken_back, PATIENCE)
        until(lambda: pair.settled(first, "sql"), PATIENCE)
    worker.close()
    assert seen == {first.name}
    by = {(row.by["route"], row.by["worker"]): row for row in pair.store.outcomes.acceptance(by=["route", "worker"])}
    assert ("sums", second.name) in by and ("sums", first.name) not in by
    shown = pair.osd("drafts", "list")
    assert first.name in shown and second.name in shown
    told(
        "a draft each", seconds=round(time.monotonic() - began, 1), taken_back_after_seen_by=sorted(seen),
        requests={" ".join(key): row.requests for key, row in by.items()},
    )  # fmt: skip


def test_a_collector_that_is_away_delays_no_answer_and_loses_what_it_must_alone(pair: World) -> None:
    replica, prompts = pair.replicas[0], different("sql", 5000, seed=5)
    pair.add(replica, "sql")
    until(replica.delivered, PATIENCE)
    start, known = replica.harvest(), harvested(pair, replica.name)
    with Clients([replica], prompts) as clients:
        time.sleep(AWAY_SECONDS / 2)
        left = time.monotonic()
        pair.attach.kill()
        time.sleep(AWAY_SECONDS)
        back = time.monotonic()
    here = [one for one in clients.answers if one.times[-1] < left]
    away = [one for one in clients.answers if left < one.began and one.times[-1] < back]
    with ThreadPoolExecutor(4) as pool:
        again = list(pool.map(lambda one: stream(replica, one.prompt, clients.most).tokens, away[::8]))
    assert again == [one.tokens for one in away[::8]] and not clients.broken
    pair.attach.start()
    until(replica.delivered, PATIENCE)
    counts = {name: value - start.get(name, 0) for name, value in replica.harvest().items()}
    ids = [one.request_id for one in pair.store.outcomes.recent(limit=100_000)]
    assert len(ids) == len(set(ids)) and harvested(pair, replica.name) - known == counts["sent"]
    assert counts["taken"] == len(clients.answers) + len(again) and counts["spooled"]
    told(
        "collector away", seconds=AWAY_SECONDS, here=quantiles(here), away=quantiles(away), counts=counts,
        answers={"here": len(here), "away": len(away)},
    )  # fmt: skip


def harvested(pair: World, worker: str) -> int:
    """Return how many answers of a replica are in the store."""
    return sum(row.requests for row in pair.store.outcomes.acceptance(by=["worker"]) if row.by["worker"] == worker)


def test_kill_nine(tmp_path: Path) -> None:
    if not PYTHON.exists():
        pytest.skip(f"there is no vLLM at {PYTHON}; `make vllm` installs it")
    found = kills.run(tmp_path / "kills", KILL_SECONDS, seed=1, mean=8.0)
    told("kill -9", **found)
    assert not found["broken_promises"]
