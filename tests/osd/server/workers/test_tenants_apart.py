"""Several processes behind one port: what another tenant was answered shows in nobody else's answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.osd.server.conftest import Server
from tests.osd.server.workers.conftest import ask, fleet
from tests.support.waiting import until

TEXTS = ["t9 t4 t7 " * 14, " ".join(f"t{2 + i * 7 % 90}" for i in range(70)), "t40 t41 t42"]
TURNS = 8


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


@pytest.mark.parametrize("prefix_mb", ["0", "64"])
@pytest.mark.parametrize("kind", ["trigram", "lookup", "causal"])
def test_a_tenants_answers_are_the_same_whether_another_asked_before_or_not(
    tmp_path: Path, pair_folder: Path, kind: str, prefix_mb: str
) -> None:
    variables = {
        "OSD_DRAFTERS__KIND": kind, "OSD_SERVE__PREFIX_CACHE_MB": prefix_mb, "OSD_NGRAM__MEMORY_MB": "2",
        "OSD_SERVER__KEYS_POLL_SECONDS": "0.1", "OSD_GAMMA__RULE": "fixed",  # others weigh times
    }  # fmt: skip
    with fleet(tmp_path, pair_folder, **variables) as server:
        with server.store() as store:
            keys = {name: store.keys.create(name)[0] for name in ("A", "B", "C")}
        until(lambda: all(known(replace(server, key=key)) for key in keys.values()), "the keys are known")
        before = everything(replace(server, key=keys["B"]))
        for _ in range(TURNS):
            for text in TEXTS:
                seen(replace(server, key=keys["A"]), text, learn=True)
        assert everything(replace(server, key=keys["C"])) == before
        assert all(len(each) == 1 for each in before)
