"""vLLMs that are started otherwise: without speculation, with two API servers, with two data parallel engines."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks.vllm.server import ENGINE, PLUGIN, WORKER, plugin_variables, random_draft, speculation
from benchmarks.vllm.server import vllm_server as server
from osd.attached.vllm.plugin.osd_vllm.weights import weights_digest
from osd.demo import DRAFT, TARGET
from osd.demo.runner.process import worker_beside
from storage.records import TokenKind
from tests.integration.vllm.conftest import (
    TOKEN,
    Home,
    Serving,
    acceptance,
    free_port,
    home_of,
    ids_of,
    some_prompts,
    until,
)  # fmt: skip

pytestmark = pytest.mark.vllm


def variables(folder: Path, plugin: str, port: int) -> dict[str, str]:
    own = {"PYTHONPATH": plugin, "OSD_VLLM_SPOOL": ""}
    return plugin_variables(folder, TOKEN, f"http://127.0.0.1:{port}") | own


def kept(home: Home) -> int:
    return sum(row.requests for row in home.store.samples.stats())


@pytest.mark.parametrize(("option", "engines"), [("--api-server-count", 1), ("--data-parallel-size", 2)])
def test_every_engine_drafts_with_what_is_published_and_every_answer_arrives(
    python: Path, tmp_path: Path, plugin: str, option: str, engines: int
) -> None:
    draft, port, prompts = random_draft(DRAFT, tmp_path / "draft"), free_port(), some_prompts("sql", 24)
    words = (*speculation(draft), *PLUGIN, *WORKER, option, "2")
    with server(python, TARGET, tmp_path / "vllm.log", words, variables(tmp_path, plugin, port)) as url:
        vllm = Serving(url, tmp_path, draft, port)
        with home_of(vllm, "several") as home:
            added = home.osd("engines", "add", url, "--draft", "sql")
            assert added.returncode == 0, added.stderr
            versions = home.store.versions
            until(lambda: versions.serving("sql"))
            said = ids_of(vllm.ask(prompts))
            until(lambda: kept(home) == len(prompts))
            newer = versions.stage(
                "sql", versions.current("sql").id, "full",
                lambda folder: shutil.copytree(DRAFT, folder, dirs_exist_ok=True) and None,
            )  # fmt: skip
            versions.promote(newer.id)
            until(lambda: versions.serving("sql") == {ENGINE: newer.id})
            digest = weights_digest(versions.folder(newer))
            for _ in range(8):  # whichever API server answers
                assert [rank.sha256 for rank in vllm.engine.served()] == [digest] * engines
            answers = vllm.ask(prompts)
            assert ids_of(answers) == said and acceptance(answers) > 0.3
            until(lambda: kept(home) == 2 * len(prompts))


def test_a_draft_learns_beside_a_vllm_that_does_not_speculate(python: Path, tmp_path: Path, plugin: str) -> None:
    draft, port, prompts = random_draft(DRAFT, tmp_path / "draft"), free_port(), some_prompts("sql", 64)
    started = variables(tmp_path, plugin, port)
    words = ("--middleware", "osd_vllm.harvest.Harvest", *WORKER)
    with server(python, TARGET, tmp_path / "plain.log", words, started) as url:
        vllm = Serving(url, tmp_path, draft, port)
        with home_of(vllm, "plain", {"teacher": "recompute"}) as home:
            added = home.osd("engines", "add", url, "--draft", "sql", "--draft-folder", draft)
            assert added.returncode == 0 and "runs without speculation" in added.stderr, added.stderr
            until(lambda: home.store.engines.list()[0].holder)
            with worker_beside(home.config, tmp_path / "worker.log"):
                said = ids_of(vllm.ask(prompts))
                until(lambda: home.store.versions.current("sql").number >= 1)
            samples = home.store.samples.read(home.store.samples.recent(limit=100))
            assert len(samples) == len(prompts) and all((one.kinds == TokenKind.UNDRAFTED).all() for one in samples)
            newest = home.store.versions.current("sql").id
            told = home.osd("engines", "list").stderr
            assert f"{newest} brings" in told and f"osd drafts export {newest}" in told, told
            exported = home.osd("drafts", "export", newest, tmp_path / "learned")
            assert exported.returncode == 0, exported.stderr
    words = (*speculation(tmp_path / "learned"), *PLUGIN, *WORKER)
    with server(python, TARGET, tmp_path / "drafts.log", words, started) as url:
        answers = vllm_at(url, vllm).ask(prompts)
        assert ids_of(answers) == said and acceptance(answers) > 0.05


def vllm_at(url: str, vllm: Serving) -> Serving:
    """The same after a restart."""
    return Serving(url, vllm.folder, vllm.draft, vllm.port)
