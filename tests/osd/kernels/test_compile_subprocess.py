"""A process of its own compiles where nothing is kept; here its code is then found."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from osd.kernels import llama
from osd.kernels.code_cache import INSIDE, apart, is_kept, one_at_a_time

SCRIPT = """
import sys
from osd.models.llama_forward_compiled import PARTS
passes = PARTS.wait()
assert passes is not None
for name in ("run_layer", "look_back"):
    stats = getattr(passes, name).stats
    print(name, sum(stats.cache_hits.values()), sum(stats.cache_misses.values()))
"""


def compiled_in(folder: Path, **variables: str) -> list[str]:
    """How often a new process found kept code, and how often none, with this folder for it."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(folder), **variables}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split("\n")[:2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a process has found nothing, and another compiled for it."""
    made = tmp_path_factory.mktemp("code")
    assert compiled_in(made) == ["run_layer 1 0", "look_back 1 0"]
    return made


def test_another_process_compiles_and_this_one_finds_it(folder: Path) -> None:
    assert {path.name.partition("-")[0] for path in folder.rglob("*.nbi")} >= {"llama.run_layer", "llama.look_back"}


def test_the_other_one_compiles_itself_and_finds_what_is_there(folder: Path) -> None:
    for path in folder.rglob("llama.run_layer*.nbi"):
        path.unlink()
    assert compiled_in(folder, **{INSIDE: "1"}) == ["run_layer 0 1", "look_back 1 0"]


def test_what_is_kept_needs_nobody_and_neither_does_what_cannot_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    from osd.models.llama_forward_compiled import compile_parts

    compile_parts()
    assert is_kept(llama.look_back)
    assert is_kept(llama.norm)  # it is not to be kept
    monkeypatch.setattr(subprocess, "Popen", None)  # asking for a process would fail
    apart(llama.look_back, "osd.models.llama_forward_compiled:compile_parts")


def test_a_process_that_fails_leaves_things_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("osd.kernels.code_cache.is_kept", lambda function: False)
    monkeypatch.delenv(INSIDE, raising=False)
    apart(llama.look_back, "osd.kernels.host:nothing_of_the_kind")
    monkeypatch.setattr(sys, "executable", "/nowhere")
    apart(llama.look_back, "osd.models.llama_forward_compiled:compile_parts")


def test_of_processes_that_start_at_once_one_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """This one waits for another's lock, and then finds the code."""
    found = iter([False, True])
    monkeypatch.setattr("osd.kernels.code_cache.is_kept", lambda function: next(found))
    monkeypatch.delenv(INSIDE, raising=False)
    monkeypatch.setattr(subprocess, "Popen", None)  # asking for a process would fail
    waiting = threading.Thread(target=apart, args=(llama.look_back, "osd.kernels.host:nothing_of_the_kind"))
    with one_at_a_time(llama.look_back):
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
    waiting.join(60)
    assert not waiting.is_alive()
