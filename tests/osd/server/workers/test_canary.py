"""A new version comes to one of two processes first, and to the other when it holds."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from storage.records import DraftVersion, VersionState
from storage.versions.canaries import CanaryState
from tests.osd.server.conftest import Server
from tests.osd.server.workers.conftest import alive, ask, fleet, kill, listed
from tests.support.models import noisy, random_module
from tests.support.waiting import until

pytestmark = pytest.mark.slow
ON = {
    "OSD_FLEET__CANARY": "true", "OSD_FLEET__CANARY_REQUESTS": "16", "OSD_FLEET__CANARY_SECONDS": "600",
    "OSD_FLEET__GONE_SECONDS": "3", "OSD_SERVER__LEARN": "false",
}  # fmt: skip


@pytest.fixture(scope="module")
def target(pair_folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(pair_folder / "target").requires_grad_(False)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, pair_folder: Path, target: Any) -> Iterator[Server]:
    """Two processes with a draft that is right often enough for another one to be worse."""
    pair = Path(shutil.copytree(pair_folder, tmp_path_factory.mktemp("fleet") / "pair"))
    noisy(target, 0.1).save_pretrained(pair / "draft")
    with fleet(pair.parent, pair, **ON) as made:
        yield made


def publish(server: Server, module: Any) -> DraftVersion:
    """Make a model current, whatever a gate would say."""
    with server.store() as store:
        parent = store.versions.current("default").id
        return store.versions.promote(store.versions.stage("default", parent, "full", module.save_pretrained).id)


def held(server: Server) -> dict[str, str]:
    """Worker -> the version that it drafts with."""
    return {name: row["drafts"][0]["version"] for name, row in alive(server).items()}


def canary_of(server: Server, version: DraftVersion) -> str:
    """Who tries it; waits until it drafts with it."""
    tried: list[str] = []

    def found() -> bool:
        tried[:] = [name for name, row in alive(server).items() if row["drafts"][0]["canary"]]
        return len(tried) == 1 and held(server)[tried[0]] == version.id

    until(found, "one tries it")
    return tried[0]


def feed(server: Server, enough: Callable[[], bool], what: str) -> None:
    """Ask until something holds; the connections are spread over both processes."""
    number = 0

    def asked() -> bool:
        nonlocal number
        number += 1
        ask(server, prompt=f"t{5 + number % 50} t{7 + number % 80}", max_tokens=24)
        return enough()

    until(asked, what)


def state(server: Server, version: DraftVersion) -> VersionState:
    with server.store() as store:
        return store.versions.get(version.id).state


def test_a_good_version_is_tried_and_then_for_all(server: Server, target: Any) -> None:
    before = held(server)
    better = publish(server, noisy(target, 0.05))
    first = canary_of(server, better)
    (other,) = set(before) - {first}
    assert held(server)[other] == before[other], "the other waits"
    assert all(row["drafts"][0]["matches"] for row in listed(server)), "as it should"
    feed(server, lambda: set(held(server).values()) == {better.id}, "all have it")
    with server.store() as store:
        (canary,) = store.canaries.list()
    assert canary.state is CanaryState.RELEASED and canary.facts["requests"] >= 16 and canary.facts["others"] >= 2
    until(lambda: state(server, better) is VersionState.SERVING, "the ledger says so")


def test_a_worse_version_is_taken_back_with_the_reason(server: Server) -> None:
    (good,) = set(held(server).values())
    worse = publish(server, random_module("llama", seed=9))
    canary_of(server, worse)
    feed(server, lambda: state(server, worse) is VersionState.ROLLED_BACK, "it is taken back")
    until(lambda: set(held(server).values()) == {good}, "all are back")
    with server.store() as store:
        assert store.versions.current("default").id == good
        reason = store.versions.get(worse.id).evidence["rolled_back"]["reason"]
    assert f"that of {good} on" in reason and "of one worker its acceptance was" in reason


def test_a_version_that_gives_no_numbers_serves_nobody(server: Server, target: Any) -> None:
    (good,) = set(held(server).values())
    broken = copy.deepcopy(target)
    with torch.no_grad():
        broken.model.layers[0].mlp.down_proj.weight.fill_(float("nan"))
    version = publish(server, broken)
    until(lambda: state(server, version) is VersionState.QUARANTINED, "it is taken back")
    assert set(held(server).values()) == {good}
    until(lambda: any("not finite" in (row["trouble"] or "") for row in listed(server)), "who refused it says")
    assert ask(server)["choices"]


def test_when_the_canary_is_killed_another_takes_over(server: Server, target: Any) -> None:
    (good,) = set(held(server).values())
    newer = publish(server, noisy(target, 0.01))
    first = canary_of(server, newer)
    kill(int(first.rpartition(":")[2]))
    until(lambda: first not in alive(server), "it is gone")
    second = canary_of(server, newer)
    assert second != first
    until(lambda: len(alive(server)) == 2 and set(held(server).values()) == {good, newer.id}, "who is new waits")
    feed(server, lambda: set(held(server).values()) == {newer.id}, "all have it")
    with server.store() as store:
        assert store.canaries.list()[0].claims == 2
