"""`python -m trainer routes`, as processes over a store on the disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from storage.settings import Settings
from storage.store import Store
from tests.support import launch


def routes(settings: Settings, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(settings, "-m", "trainer", "routes", *arguments)


def osd(settings: Settings, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(settings, "-m", "osd.cli.main", *arguments)


def run(settings: Settings, *command: str) -> subprocess.CompletedProcess[str]:
    folder = settings.storage.data_directory()
    own = {
        "OSD_STORAGE__DIRECTORY": str(folder), "OSD_LEARN__EPOCHS": "12", "OSD_LEARN__LEARNING_RATE": "0.02",
        "OSD_GATE__CONFIDENCE": "0.6",
        "OSD_TRAINER__DEVICE": "cpu", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    where = Path(__file__).parents[3]
    return launch.run([sys.executable, *command], env={**os.environ, **own}, timeout=300, cwd=where)


def answer(done: subprocess.CompletedProcess[str]) -> Sequence[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def test_found_applied_and_declined_by_commands(mixed: Store, settings: Settings) -> None:
    found = [row for row in answer(routes(settings, "discover")) if row["kind"] == "split"]
    assert len(found) == 2 and all("members" not in row and "examples" not in row for row in found)
    done = answer(routes(settings, "apply", str(found[0]["id"]), "--name", "first", "--who", "me"))
    assert done[0]["state"] == "applied" and mixed.routes.get("first").draft == "first"
    assert answer(routes(settings, "decline", str(found[1]["id"])))[0]["state"] == "declined"
    again = routes(settings, "apply", str(found[1]["id"]))
    assert again.returncode == 5 and "declined" in again.stderr and "Traceback" not in again.stderr
    fits = answer(routes(settings, "nearest", "--route", "default"))
    assert {fit["draft"] for fit in fits} == {"default", "first"}


def test_an_admin_splits_a_route_and_merges_it_again(mixed: Store, settings: Settings) -> None:
    made = answer(osd(settings, "router", "split", "default", "--yes", "--json"))
    assert len(made) == 2 and {row["state"] for row in made} == {"applied"}
    names = {row["route"] for row in made}
    assert {route.name for route in mixed.routes.list()} == {"default", *names}
    first = names.pop()
    done = osd(settings, "router", "merge", first, "default", "--yes", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["draft"] == "default"
    assert mixed.routes.get(first).draft == "default"
    again = osd(settings, "router", "merge", first, "default", "--yes")
    assert again.returncode == 2 and "one draft already" in again.stderr


def test_without_samples_nothing_is_nearest(drafted: Store, settings: Settings) -> None:
    done = routes(settings, "nearest")
    assert done.returncode == 2 and "There are no samples" in done.stderr
