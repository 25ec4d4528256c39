"""Nothing that osd does to a vLLM touches an answer: every command that speaks with an engine runs while four clients
stream, and each answer has the ids of a vLLM that drafts nothing and that nobody attached."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from osd.attached.vllm.engine import PAUSED
from osd.attached.vllm.plugin.osd_vllm.weights import weights_digest
from osd.demo import DRAFT
from storage.records import DEFAULT_DRAFT
from storage.versions.weights import copy_files, servable_files
from tests.integration.vllm.conftest import Home, Serving, home_of, ids_of, some_prompts, steps_of, until

pytestmark = pytest.mark.vllm
ENGINE = "vllm"


def engines(home: Home, *words: str) -> None:
    """Run a command of `osd engines`."""
    said = home.osd("engines", *words)
    assert said.returncode == 0, (words, said.stderr)


def publish_and_roll_back(vllm: Serving, home: Home) -> None:
    """Publish a trained draft by hand, wait until vLLM has it, and take it back."""

    def write(aside: Path) -> None:
        copy_files(DRAFT, servable_files(DRAFT), aside)

    def serves(folder: Path) -> bool:
        return {rank.sha256 for rank in vllm.engine.served()} == {weights_digest(folder)}

    before = home.store.versions.current(DEFAULT_DRAFT)
    version = home.store.versions.stage(DEFAULT_DRAFT, before.id, "full", write)
    assert not home.osd("drafts", "promote", version.id, "--yes").returncode
    until(lambda: serves(home.store.versions.folder(version)))
    assert not home.osd("drafts", "rollback", DEFAULT_DRAFT, "--yes").returncode
    until(lambda: serves(home.store.versions.folder(before)))


def test_no_command_touches_an_answer(vllm: Serving) -> None:
    asked, done = some_prompts("sql", 24), Event()
    vllm.engine.set_gamma(PAUSED)
    until(lambda: not any(steps_of(vllm.ask(asked[:1])[0])[1]), "it drafts nothing")
    plain = ids_of(vllm.ask(asked))
    vllm.engine.set_gamma([(1, 4, 4)])

    def keep_asking() -> list[list[list[int]]]:
        rounds = []
        while not done.is_set():
            rounds.append(ids_of(vllm.ask(asked)))
        return rounds

    with ThreadPoolExecutor(1) as pool:
        rounds = pool.submit(keep_asking)
        try:
            with home_of(vllm, "commands") as home:
                engines(home, "probe", vllm.url, "--selftest")
                engines(home, "add", vllm.url, "--draft", DEFAULT_DRAFT)
                until(lambda: home.store.samples.recent(limit=1))
                for words in (("list",), ("show", ENGINE), ("tune", vllm.url, "--apply"), ("pause", ENGINE)):
                    engines(home, *words)
                engines(home, "resume", ENGINE)
                publish_and_roll_back(vllm, home)
                engines(home, "remove", ENGINE)
        finally:
            done.set()
            vllm.engine.set_gamma([(1, 4, 4)])
    found = rounds.result()
    assert len(found) >= 2 and all(one == plain for one in found), "an answer changed"
