"""Every command and every HTTP route that changes something leaves its line in the trail.

The command tree and the route table are walked: what is neither among those that change nothing nor tried here fails.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from osd.cli.reference import commands
from osd.server.admin.dashboard import facts
from osd.server.admin.routes import admin
from osd.server.http.api import api
from osd.server.http.chat import chat_routes
from osd.server.http.completions import completion_routes
from osd.server.http.guard import Guard
from osd.server.http.keys import KeyRing
from osd.server.metrics.server import Meters
from storage.records import Route, now
from storage.sql.audit import login
from tests.osd.cli.conftest import Filled, model_folder, write_model
from tests.storage.access.test_trainers import training
from tests.storage.access.test_workers import worker

READS = {
    "audit", "config", "corpus export", "corpus stats", "db check", "doctor", "drafts examine", "drafts list",
    "drafts show", "engines list", "engines show", "engines teacher", "keys list", "metrics", "replay log",
    "replay stats", "replay verify",
    "router eval", "router explain", "router export", "router history", "router list", "router proposals",
    "router show", "stats acceptance", "stats change", "stats gain", "stats positions", "stats rejections",
    "stats runs",
    "stats tokens", "servers list", "targets list", "targets show", "trainer list",
}  # fmt: skip
"""Commands that only look."""
SERVES_OR_LEARNS = {"attach", "demo", "generate", "serve"}
"""Commands whose doings are requests, runs and versions, which the store keeps anyhow."""
ELSEWHERE = {
    "engines add": "tests/osd/attached/test_attach.py", "engines probe": "keeps nothing",
    "engines tune": "changes an engine, not the store",
    "engines pause": "tests/osd/attached/test_lengths.py", "engines resume": "tests/osd/attached/test_lengths.py",
    "use": "writes osd.toml, not the store",
    "corpus build": "test_corpus.py", "drafts export": "test_drafts.py",
    "drafts new": "needs a target; tests/osd/cli/test_drafts.py", "drafts push": "test_drafts.py",
    "db upgrade": "tests/storage/sql/test_migrations.py", "db restore": "tests/storage/test_backup.py",
    "targets succeed": "test_targets.py", "targets forget": "test_targets.py",
    "replay adopt": "test_replay_keep.py", "router discover": "tests/trainer/routes/test_commands.py",
    "router apply": "tests/trainer/routes/test_commands.py", "router decline": "tests/trainer/routes/test_commands.py",
    "router split": "applies proposals", "router train": "test_router.py",
}  # fmt: skip
"""Commands that need more than a small store, and where they are tried."""


def tries(filled: Filled, folder: Path) -> dict[str, tuple[list[str], str]]:
    """Command -> its arguments, and the action of the line that it leaves."""
    child, root = filled.child, filled.root
    stage = lambda: filled.store.versions.stage("default", child, "full", lambda f: write_model(f, 2.0))  # noqa: E731
    spare = [filled.store.versions.reject(stage().id, {}).id for _ in range(3)]
    export, routes = folder / "samples.parquet", folder / "routes.json"
    key = filled.store.keys.create("acme")[1].id
    filled.store.servers.beat(replace(worker("a", now()), gone_at=now() + 600))
    filled.store.trainers.beat(training(gone_at=now() + 600))
    filled.store.engines.add("there", "http://127.0.0.1:1", "default", {})
    filled.store.versions.register_root("other", model_folder(folder / "other", 7.0))
    filled.store.routes.add(Route("early", "other"))
    routes.write_text('{"version": 1, "routes": [{"name": "imported", "draft": "default"}]}')
    own: dict[str, tuple[list[str], str] | list[str]] = {
        "drafts promote": [child, "--yes"],
        "drafts rollback": ["--to", root, "--yes"],
        "drafts pin": [root],
        "drafts freeze": [],
        "drafts resume": [],
        "db backup": [str(folder / "copy")],
        "drafts alias": ["good", child],
        "drafts delete": [spare[0], "--yes"],
        "drafts retain": [],
        "engines remove": ["there"],
        "keys create": [],
        "keys revoke": [key, "--yes"],
        "replay export": [str(export)],
        "replay import": [str(export)],
        "replay retry": [],
        "replay retain": [],
        "replay compact": [],
        "replay tenant": ["acme", "--no-share"],
        "replay forget": ["--tenant", "odd", "--yes"],
        "replay purge": ["--all", "--yes"],
        "router add": ["code", "--draft", "default"],
        "router change": ["code", "--topic", "code"],
        "router rename": ["code", "programs"],
        "router pin": ["acme", "programs"],
        "router unpin": ["acme"],
        "router teach": ["code", "def f(): pass"],
        "router forget": ["code", "--yes"],
        "router merge": (["early", "programs", "--yes"], "router change"),
        "router remove": ["programs", "--yes"],
        "router import": ([str(routes)], "router add"),
        "servers drain": ["a"],
        "trainer pause": [],
        "trainer resume": ["tower:7"],
        "trainer cancel": ["tower:7"],
    }
    return {name: one if isinstance(one, tuple) else (one, name) for name, one in own.items()}


def test_every_command_that_changes_something_leaves_its_line(osd, filled: Filled, tmp_path: Path) -> None:
    here = tries(filled, tmp_path)
    known = READS | SERVES_OR_LEARNS | set(ELSEWHERE) | set(here)
    found = {name.removeprefix("osd ") for name, command in commands() if not hasattr(command, "commands")}
    found = {name for name in found if not name.startswith("bench ")}
    assert found == known, f"say of each what it leaves: {sorted(found ^ known)}"
    for name, (arguments, action) in here.items():
        before = len(filled.store.trail.history(limit=1000))
        done = osd(*name.split(), *arguments)
        assert done.exit_code == 0, f"{name}: {done.output}"
        lines = filled.store.trail.history(limit=1000)[: len(filled.store.trail.history(limit=1000)) - before]
        assert action in [line.action for line in lines], name
        assert {(line.who, line.origin) for line in lines} == {(login(), "cli")}, name


INFERENCE = {"/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"}
"""Routes that answer requests, which the store keeps anyhow."""


def posts(filled: Filled) -> dict[str, tuple[dict[str, Any], str]]:
    """Route -> a body, and the action of the line that it leaves."""
    return {
        "/admin/drafts/promote": ({"version": filled.root}, "drafts promote"),
        "/admin/drafts/rollback": ({"to": filled.child}, "drafts rollback"),
        "/admin/drafts/pin": ({"version": "current"}, "drafts pin"),
        "/admin/drafts/freeze": ({}, "drafts freeze"),
        "/admin/drafts/resume": ({}, "drafts resume"),
        "/admin/servers/drain": ({"server": "a"}, "servers drain"),
        "/admin/trainers/pause": ({"trainer": "tower"}, "trainer pause"),
        "/admin/trainers/resume": ({"trainer": "tower"}, "trainer resume"),
        "/admin/trainers/cancel": ({"trainer": "tower"}, "trainer cancel"),
    }


def test_every_route_that_changes_something_leaves_its_line(filled: Filled) -> None:
    filled.store.servers.beat(replace(worker("a", now()), gone_at=now() + 600))
    filled.store.trainers.beat(training(gone_at=now() + 600))
    bodies = posts(filled)
    groups = (admin, facts, api, chat_routes, completion_routes)
    routes = [route for group in groups for route in group.routes if isinstance(route, APIRoute)]
    changing = {route.path for route in routes if route.methods - {"GET", "HEAD"}}
    assert changing == INFERENCE | set(bodies), f"say of each what it leaves: {changing ^ INFERENCE ^ set(bodies)}"
    app = FastAPI()
    app.state.service = SimpleNamespace(store=filled.store)
    app.include_router(admin)
    ring = KeyRing(filled.store.keys, 60.0, required=False, local_only=False)
    meters = Meters()
    app.add_middleware(Guard, ring=ring, meters=meters, scopes={"/admin/": "admin"}, limit=1 << 20)
    client = TestClient(app)
    for path, (body, action) in bodies.items():
        answer = client.post(path, json=body)
        assert answer.status_code == 200, f"{path}: {answer.text}"
        newest = filled.store.trail.history(limit=1)[0]
        assert (newest.action, newest.origin) == (action, "http testclient") and "no key" in newest.who, path


def test_the_trail_is_narrowed_and_shows_what_differs(osd, filled: Filled) -> None:
    osd("drafts", "freeze", "--reason", "the fair")
    osd("router", "add", "code", "--draft", "default")
    shown = osd("audit").stdout
    assert "router add" in shown and "drafts freeze" in shown and "hold: – → frozen" in shown.replace("\n", " ")
    assert "router add" not in osd("audit", "--action", "drafts").stdout
    assert "drafts freeze" in osd("audit", "default").stdout
    nothing = osd("audit", "--since", "2100-01-01")
    assert (nothing.stdout, nothing.stderr) == ("", "No such change was made.\n")
    assert "router add" in osd("router", "history").stdout and osd("replay", "log").stdout == ""
