"""Holders of leases: who is known to have ended, and who is not."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.errors import LeaseHeld
from storage.records import RunState
from storage.runs import ClaimTerms
from storage.sql.holders import NAME, has_gone, holder_name
from storage.store import Store
from tests.storage.make import add_root, samples

ROOT = Path(__file__).parents[3]
WAITS = "import sys; from storage.sql.holders import holder_name; print(holder_name(), flush=True); sys.stdin.read()"

pytestmark = pytest.mark.skipif(not NAME.fullmatch(holder_name()), reason="the system does not tell who lives")


@pytest.fixture
def holder() -> Iterator[subprocess.Popen[str]]:
    """A process that says its name and waits."""
    command = [sys.executable, "-c", WAITS]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


def test_the_lease_of_a_killed_process_is_free_at_once_and_that_of_a_living_one_is_not(
    keep_all: Store, tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    add_root(keep_all, tmp_path / "model")
    keep_all.samples.add([samples(number) for number in range(6)])
    terms = ClaimTerms(4, 1e9, 3600.0)
    lost = keep_all.runs.claim("default", said(holder), terms)
    assert lost is not None
    with pytest.raises(LeaseHeld):
        keep_all.runs.claim("default", holder_name(), terms)
    os.kill(holder.pid, signal.SIGSTOP)
    with pytest.raises(LeaseHeld):
        keep_all.runs.claim("default", holder_name(), terms)
    holder.kill()
    holder.wait()
    taken = keep_all.runs.claim("default", holder_name(), terms)
    assert taken is not None and taken.request_ids == lost.request_ids
    assert keep_all.runs.get(lost.id).state is RunState.LOST


def test_who_may_live_has_not_gone(holder: subprocess.Popen[str]) -> None:
    name = said(holder)
    holder.kill()
    holder.wait()
    assert has_gone(name)
    elsewhere = name.replace(f"{socket.gethostname()}:", "another-host:", 1)
    another_boot = re.sub(r":[0-9a-f]{8}-", ":00000000-", name)
    assert not any(map(has_gone, (elsewhere, another_boot, holder_name(), "gpu:1:3f", "killed", "")))


def test_a_process_that_has_another_ones_id_is_not_taken_for_it() -> None:
    earlier = re.sub(r"(?<=:[0-9a-f]{8}-)\d+", lambda start: str(int(start[0]) - 1), holder_name())
    assert has_gone(earlier)
