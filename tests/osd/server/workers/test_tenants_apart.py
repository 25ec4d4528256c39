"""Several processes behind one port: what another tenant was answered shows in nobody else's answers."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from osd.hotswap.new_draft import new_feature_version
from storage.settings import load_settings
from storage.store import open_store
from tests.osd.server.conftest import Server
from tests.osd.server.workers.conftest import ask, fleet, write_pair
from tests.support.models import VOCABULARY, noisy, random_module
from tests.support.params import some_of
from tests.support.waiting import until

TEXTS = ["t9 t4 t7 " * 14, " ".join(f"t{2 + i * 7 % 90}" for i in range(70)), "t40 t41 t42"]
TURNS = 8
DRAFTERS = {
    "trigram": "trigram", "lookup": "lookup", "causal": "causal", "universal": "universal", "medusa": "tree",
    "eagle": "tree", "eagle3": "tree",
}  # fmt: skip
"""Not blended: it weighs table and draft by the tenant's own answers, and which process gave how many is chance here.
In one process it is compared, too (tests/osd/engine)."""


@pytest.fixture
def pair(tmp_path: Path, pair_folder: Path, name: str) -> Path:
    """Target and draft for one of the drafters."""
    if name == "universal":  # the draft has the same words, with other ids
        ids = random.Random(0).sample(range(2, VOCABULARY), VOCABULARY - 2)
        target = random_module("llama")
        return write_pair(tmp_path / "pair", target, noisy(target, 0.3), [0, 1, *ids])
    if DRAFTERS[name] != "tree":
        return pair_folder
    made = tmp_path / "pair"
    made.mkdir()
    (made / "target").symlink_to(pair_folder / "target")
    with open_store(load_settings(storage={"directory": tmp_path / "made"})) as store:
        version = new_feature_version(store, "draft", str(made / "target"), name, None, None)
        (made / "draft").symlink_to(store.versions.folder(version))
    return made


def known(server: Server) -> bool:
    """Whether every process knows the key."""
    return all(server.get("/v1/models").status_code == 200 for _ in range(TURNS))


def seen(server: Server, prompt: str, **own: object) -> tuple[str, int]:
    """What an answer holds that does not tell the time, and how many tokens were drafted for it."""
    fields = {"metrics": "detailed", "learn": False, **own}
    answer = ask(server, prompt=prompt, max_tokens=24, ignore_eos=True, osd=fields)
    told = answer["metrics"]["speculative_decoding"]
    return str([answer["choices"], answer["usage"], told]), told["num_draft_tokens"]


def everything(server: Server) -> list[set[tuple[str, int]]]:
    """What both processes answer a tenant, once each has its table; nothing is learned of it."""
    until(lambda: all(seen(server, "t5 t6 t5 t6 t5 t6")[1] for _ in range(TURNS)), "all draft")
    return [{seen(server, text) for _ in range(TURNS)} for text in TEXTS]


@pytest.mark.parametrize("prefix_mb", [pytest.param("0", marks=pytest.mark.long), "64"])
@pytest.mark.parametrize("name", some_of(DRAFTERS, "causal", "eagle"))
def test_a_tenants_answers_are_the_same_whether_another_asked_before_or_not(
    tmp_path: Path, pair: Path, name: str, prefix_mb: str
) -> None:
    variables = {
        "OSD_DRAFTERS__KIND": DRAFTERS[name], "OSD_SERVE__PREFIX_CACHE_MB": prefix_mb, "OSD_NGRAM__MEMORY_MB": "2",
        "OSD_SERVER__KEYS_POLL_SECONDS": "0.1", "OSD_GAMMA__RULE": "fixed",  # others weigh times
    }  # fmt: skip
    with fleet(tmp_path, pair, **variables) as server:
        with server.store() as store:
            keys = {name: store.keys.create(name)[0] for name in ("A", "B", "C")}
        until(lambda: all(known(replace(server, key=key)) for key in keys.values()), "the keys are known")
        before = everything(replace(server, key=keys["B"]))
        for _ in range(TURNS):
            for text in TEXTS:
                seen(replace(server, key=keys["A"]), text, learn=True)
        assert everything(replace(server, key=keys["C"])) == before
        assert all(len(each) == 1 for each in before)
