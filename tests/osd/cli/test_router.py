"""`osd router`: changes of routes. What is refused leaves the whole state as it was."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from sqlalchemy import text

from storage.records import Route
from storage.runs import ClaimTerms
from storage.sql.audit import login
from tests.osd.cli.conftest import Filled, model_folder, samples

DEFAULT = {"name": "default", "draft": "default", "candidates": [], "matches": {}}


def state(filled: Filled) -> tuple[object, ...]:
    """Every row of every table, and every file."""
    with filled.store.db.session(read_only=True) as session:
        tables = session.execute(text("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")).scalars()
        rows = {name: sorted(map(repr, session.execute(text(f"SELECT * FROM {name}")))) for name in tables}
    folder = filled.store.directory
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*.*"))
             if path.is_file() and not path.name.startswith("osd.db")}  # fmt: skip
    return rows, files


@pytest.fixture
def routed(filled: Filled, tmp_path: Path) -> Filled:
    """A second draft, ``sql``, and a route to it."""
    filled.store.versions.register_root("sql", model_folder(tmp_path / "sql-model", 7.0))
    filled.store.routes.add(Route("sql", "sql", {"topic": ["databases"]}), "ada@tower")
    return filled


def said_json(done) -> object:
    assert done.exit_code == 0, done.stderr
    assert done.stdout.count("\n") == 1
    return json.loads(done.stdout)


# adding


def test_add_with_a_draft_that_is_there(osd, routed):
    done = osd("router", "add", "code", "--draft", "sql", "--candidate", "default", "--topic", "go", "--topic", "c",
               "--language", "en", "--tenant", "acme", "--pattern", r"\bfunc\b", "--json")  # fmt: skip
    matches = {"language": ["en"], "topic": ["go", "c"], "tenant": ["acme"], "pattern": r"\bfunc\b"}
    assert said_json(done) == {"name": "code", "draft": "sql", "candidates": ["default"], "matches": matches}
    assert routed.store.routes.get("code") == Route("code", "sql", matches, ("default",))
    newest = routed.store.routes.history()[0]
    assert (newest.action, newest.who, newest.subject) == ("router add", login(), "code")


def test_add_says_what_it_did(osd, routed):
    done = osd("router", "add", "code", "--draft", "sql")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "The route code is served by the draft sql." in done.stderr


def test_a_new_draft_starts_from_the_default_one_s_current_version(osd, filled):
    assert said_json(osd("router", "add", "code", "--new-draft", "--topic", "go", "--json"))["draft"] == "code"
    version = filled.store.versions.current("code")
    assert (version.number, version.digest) == (0, filled.store.versions.get(filled.child).digest)
    assert filled.store.versions.provenance(version)["provenance"]["forked_from"] == filled.child
    assert filled.store.versions.options("code") == {}
    filled.store.versions.verify(version)


@pytest.mark.parametrize("of", ["draft", "version", "folder"])
def test_a_new_draft_starts_where_it_is_told(osd, routed, tmp_path, of):
    origin = {"draft": "sql", "version": routed.root, "folder": tmp_path / "sql-model"}[of]
    done = osd("router", "add", "code", "--new-draft", "--draft", "coder", "--from", origin, "--kind", "full")
    assert done.exit_code == 0, done.stderr
    wanted = routed.store.versions.get(routed.root) if of == "version" else routed.store.versions.current("sql")
    assert routed.store.versions.current("coder").digest == wanted.digest
    assert routed.store.versions.options("coder") == {"method": "full"}
    assert routed.store.routes.get("code").draft == "coder"


def test_new_adapters_stand_over_one_base(osd, filled):
    for name in ("code", "sql"):
        assert osd("router", "add", name, "--new-draft", "--kind", "lora").exit_code == 0
    base = filled.store.versions.get(filled.root)
    assert [filled.store.versions.current(name).digest for name in ("code", "sql")] == [base.digest] * 2
    assert filled.store.versions.options("sql") == {"method": "lora"}


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["add", "sql", "--draft", "sql"], 2, "There is a route named 'sql' already"),
        (["add", "sql", "--new-draft"], 2, "There is a route named 'sql' already"),
        (["add", "code"], 2, "The route 'code' has no draft that could serve it (none is named)"),
        (["add", "code", "--draft", "coder"], 3, "no draft named 'coder'; known: default, sql"),
        (["add", "code", "--draft", "sql", "--candidate", "coder"], 3, "no draft named 'coder'"),
        (["add", "code", "--new-draft", "--candidate", "coder"], 3, "no draft named 'coder'"),
        (["add", "code", "--new-draft", "--from", "coder"], 3, "no draft named 'coder'"),
        (["add", "code", "--new-draft", "--draft", "sql"], 2, "There is a draft named 'sql' already"),
        (["add", "../up", "--new-draft"], 2, "cannot name a route"),
        (["add", "code", "--draft", "sql", "--pattern", "a(b"], 2, "'a(b' does not compile (missing ): a(b)"),
        (["add", "code", "--new-draft", "--pattern", "[z-a]"], 2, "invalid character class range: z-a"),
        (["add", "code", "--draft", "sql", "--language", "klingonese"], 2, "'klingonese' is no language"),
        (["add", "code", "--draft", "sql", "--from", "sql"], 2, "give --new-draft too"),
        (["add", "code", "--new-draft", "--kind", "half"], 2, "'half' is not one of"),
        (["change", "code", "--draft", "sql"], 3, "no route named 'code'; known: default, sql"),
        (["change", "sql", "--pattern", "*"], 2, "no argument for repetition operator"),
        (["change", "default", "--topic", "all"], 2, "it takes what matches no other"),
        (["remove", "default", "--yes"], 2, "The route 'default' cannot be removed"),
        (["remove", "default"], 2, "The route 'default' cannot be removed"),
        (["remove", "code", "--yes"], 3, "no route named 'code'"),
        (["remove", "sql"], 2, "Nobody can answer: there is no terminal. Give --yes"),
        (["rename", "default", "rest"], 2, "cannot be renamed"),
        (["rename", "sql", "default"], 2, "There is a route named 'default' already"),
        (["rename", "sql", "a b"], 2, "cannot name a route"),
        (["pin", "acme", "code"], 3, "no route named 'code'"),
        (["unpin", "acme"], 3, "'acme' is pinned to no route; pinned: none"),
        (["train", "code"], 3, "no route named 'code'"),
        (["show", "code"], 3, "no route named 'code'"),
        (["forget", "code", "--yes"], 3, "No example of the topic 'code' was taught; known: none"),
        (["teach", "code"], 2, "give a TOPIC and a TEXT"),
        (["teach", "code", " "], 2, "An example of 'code' is empty"),
    ],
)  # fmt: skip
def test_what_is_refused_changes_nothing(osd, routed, arguments, status, words):
    before = state(routed)
    done = osd("router", *arguments)
    assert (done.exit_code, done.stdout) == (status, ""), done.output
    assert words in " ".join(done.stderr.replace("│", " ").split()), done.stderr
    assert state(routed) == before


# changing


def test_change_replaces_what_is_given_and_keeps_the_rest(osd, routed):
    done = osd("router", "change", "sql", "--language", "en", "--candidate", "default", "--json")
    assert said_json(done)["matches"] == {"language": ["en"], "topic": ["databases"]}
    assert said_json(osd("router", "change", "sql", "--topic", "sql", "--json"))["candidates"] == ["default"]
    cleared = said_json(osd("router", "change", "sql", "--clear", "--draft", "default", "--tenant", "acme", "--json"))
    assert cleared == {"name": "sql", "draft": "default", "candidates": [], "matches": {"tenant": ["acme"]}}


def test_remove_asks_names_the_pins_and_takes_no_for_an_answer(osd, routed):
    routed.store.routes.pin("acme", "sql")
    before = state(routed)
    refused = osd("router", "remove", "sql", stdin="n\n")
    assert refused.exit_code == 1 and "Remove the route sql and the pins of acme?" in refused.stderr
    assert state(routed) == before
    assert osd("router", "remove", "sql", stdin="y\n").exit_code == 0
    assert routed.store.routes.list() == [Route()] and routed.store.versions.current("sql").number == 0


def test_remove_with_yes_asks_nothing(osd, routed):
    done = osd("router", "remove", "sql", "--yes", "--json")
    assert said_json(done)["name"] == "sql" and "?" not in done.stderr


def test_rename_pin_and_unpin(osd, routed):
    assert said_json(osd("router", "pin", "acme", "sql", "--json")) == {"acme": "sql"}
    assert said_json(osd("router", "rename", "sql", "queries", "--json"))["name"] == "queries"
    assert osd("router", "pin", "*", "default").exit_code == 0
    assert routed.store.routes.pins() == {"acme": "queries", "*": "default"}
    assert said_json(osd("router", "unpin", "acme", "--json")) == {"*": "default"}
    assert [change["action"] for change in said_json(osd("router", "history", "queries", "--json"))] == [
        "router unpin", "router rename", "router pin", "router add",
    ]  # fmt: skip


# looking


def test_list_tells_who_serves_what_and_how_well(osd, routed):
    routed.store.routes.pin("acme", "sql")
    rows = said_json(osd("router", "list", "--json"))
    assert [row["name"] for row in rows] == ["default", "sql"]
    assert (rows[0]["requests"], rows[0]["alpha"], rows[0]["samples"]) == (6, 0.75, 6)
    assert (rows[1]["pins"], rows[1]["matches"], rows[1]["alpha"]) == (["acme"], {"topic": ["databases"]}, None)
    table = osd("router", "list").stdout
    assert "topic databases" in table and "0.750" in table and "acme" in table


def test_show_tells_all_of_one_route(osd, routed):
    routed.store.routes.change(Route("default", "default", candidates=("sql",)))
    facts = said_json(osd("router", "show", "default", "--json"))
    assert [(row["draft"], row["requests"], row["alpha"]) for row in facts["drafts"]] == [
        ("default", 6, 0.75), ("sql", 0, None),
    ]  # fmt: skip
    assert facts["drafts"][0]["version"] == routed.child
    assert [change["action"] for change in facts["history"]] == ["router change"]
    routed.store.examples.teach([("databases", "SELECT 1")])
    routed.store.routes.rename("sql", "queries")
    facts = said_json(osd("router", "show", "queries", "--json"))
    assert (facts["examples"], facts["former_names"]) == ({"databases": 1}, ["sql"])
    shown = osd("router", "show", "queries").stdout
    assert "databases: 1" in shown and "name: sql → queries" in shown


def test_show_of_a_draft_without_weights(osd):
    facts = said_json(osd("router", "show", "default", "--json"))
    assert facts["drafts"][0]["version"] is None
    assert osd("router", "show", "default").exit_code == 0


def test_history_says_who_when_and_what(osd, routed):
    osd("router", "change", "sql", "--draft", "default")
    rows = said_json(osd("router", "history", "--json"))
    assert [(row["action"], row["who"]) for row in rows] == [
        ("router change", login()), ("router add", "ada@tower"),
    ]  # fmt: skip
    assert (rows[0]["before"]["draft"], rows[0]["after"]["draft"]) == ("sql", "default")
    assert rows[0]["at"] >= rows[1]["at"]
    assert "draft: sql → default" in osd("router", "history", "--limit", "1").stdout
    empty = osd("router", "history", "nowhere")
    assert (empty.exit_code, empty.stdout) == (0, "") and "Nothing was changed" in empty.stderr


# training


def test_train_becomes_a_turn_of_the_route_s_draft(osd, routed, monkeypatch):
    """What a turn of the trainer does is tested with real processes: tests/osd/cli/test_process.py, tests/trainer."""
    asked: list[list[str]] = []
    monkeypatch.setattr("osd.cli.router.become", asked.append)
    monkeypatch.setenv("OSD_LEARN__INTERVAL_REQUESTS", "40")
    assert osd("router", "train", "default").exit_code == 0 and os.environ["OSD_LEARN__INTERVAL_REQUESTS"] == "40"
    assert osd("router", "train", "sql", "--force", "--json").exit_code == 0
    assert [words[-4:] for words in asked] == [
        ["trainer", "once", "--draft", "default"], ["once", "--draft", "sql", "--json"],
    ]  # fmt: skip
    assert [line.after["force"] for line in routed.store.trail.history(action="router train")] == [True, False]
    assert os.environ["OSD_LEARN__INTERVAL_REQUESTS"] == "1"


@pytest.mark.long
def test_train_is_refused_while_somebody_else_trains_and_says_so(osd_process, routed):
    """Somebody else trains the default draft, so that is what its turn says; nothing waits for the other one."""
    routed.store.samples.add([samples(number, routed.child) for number in range(10, 20)])
    held = routed.store.runs.claim("default", "another worker", ClaimTerms(1, 60, 600))
    refused = osd_process("router", "train", "default")
    assert refused.returncode == 6 and "being trained by another worker" in refused.stderr
    done = osd_process("router", "train", "sql", "--force", "--json")
    assert done.returncode == 0, done.stderr
    assert routed.store.runs.list("sql") == [] and routed.store.runs.list("default")[0] == held
