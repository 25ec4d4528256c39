"""`osd router teach`, `forget`, `export`, `import`, `explain`, `eval`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from router.classifier_models import learned_topics, model_folder
from storage.records import Route
from tests.osd.cli.conftest import Filled
from tests.osd.cli.test_router import routed, said_json, state  # noqa: F401  (routed is a fixture)

SQL = ["SELECT name FROM people", "How many rows has the table of orders?", "join customers with their orders",
       "count the users by month", "which city has most shops, by SQL"]  # fmt: skip
COOKING = ["how long do I boil an egg", "a recipe for rye bread", "what can I cook with leeks",
           "bake a cake without sugar", "is the soup done when it boils"]  # fmt: skip
GERMAN = "Wie spät ist es gerade in Berlin, und wann fährt der nächste Zug nach Hamburg?"


def write_lines(path: Path, lines: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    return path


@pytest.fixture
def taught(osd, routed: Filled, tmp_path: Path) -> Filled:  # noqa: F811
    """Two topics, and a route each way of matching."""
    lines = [{"prompt": text, "topic": "databases"} for text in SQL]
    lines += [{"text": text, "label": "cooking"} for text in COOKING]
    done = osd("router", "teach", "--file", write_lines(tmp_path / "taught.jsonl", lines), "--json")
    assert said_json(done) == {"new": 10, "moved": 0, "known": 0, "topics": {"cooking": 5, "databases": 5}}
    routed.store.routes.add(Route("german", "sql", {"language": ["de"]}))
    return routed


def refuse(osd, filled: Filled, words: str, *arguments: object, status: int = 2) -> None:
    before = state(filled)
    done = osd("router", *arguments)
    assert (done.exit_code, done.stdout) == (status, ""), done.output
    assert words in done.stderr, done.stderr
    assert state(filled) == before


# teach, forget


def test_teaching_leaves_the_model_that_servers_read(taught):
    (model,) = model_folder(taught.store).glob("topics-*.npz")
    written = model.read_bytes()
    found = learned_topics(model_folder(taught.store), taught.store.examples.list())
    assert model.read_bytes() == written and set(found.labels) == {"databases", "cooking"}
    assert found.predict("count the orders by city").label == "databases"


def test_teaching_one_text_and_teaching_it_otherwise(osd, taught):
    done = osd("router", "teach", "cooking", SQL[0])
    assert (done.exit_code, done.stdout) == (0, "")
    assert "0 new examples, 1 moved. 2 topics, " in done.stderr
    newest = taught.store.routes.history()[0]
    assert newest.after == {"topics": ["cooking"], "new": 0, "moved": 1} and SQL[0] not in repr(newest)
    assert "rare has 1: give 8 or more." in osd("router", "teach", "rare", "What is osmium?").stderr


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"prompt": "no label"}', "Line 2 needs a text or prompt, and a topic"),
        ('{"topic": "no text"}', "Line 2 needs a text or prompt, and a topic"),
        ("[1]", "Line 2 is not a JSON object"),
        ("{", "Line 2 is not JSON"),
        ('{"topic": "x", "text": " "}', "An example of 'x' is empty"),
    ],
)
def test_a_bad_line_teaches_nothing(osd, taught, tmp_path, line, words):
    file = tmp_path / "bad.jsonl"
    file.write_text('{"topic": "new", "text": "good"}\n' + line + "\n")
    refuse(osd, taught, words, "teach", "--file", file)


def test_a_file_that_is_not_there_teaches_nothing(osd, taught):
    refuse(osd, taught, "nowhere.jsonl: It cannot be read", "teach", "--file", "nowhere.jsonl")


def test_forgetting_deletes_examples_and_what_was_made_of_them(osd, taught):
    old = {path.name for path in model_folder(taught.store).iterdir()}
    refused = osd("router", "forget", "cooking", stdin="n\n")
    assert refused.exit_code == 1 and "Delete 5 examples of cooking?" in refused.stderr
    assert said_json(osd("router", "forget", "cooking", "--yes", "--json")) == {"topic": "cooking", "examples": 5}
    assert taught.store.examples.counts() == {"databases": 5}
    assert osd("router", "forget", "databases", "--yes").exit_code == 0
    assert not old & {path.name for path in model_folder(taught.store).iterdir()}
    assert list(model_folder(taught.store).glob("topics-*")) == []


# export, import


def test_what_is_exported_is_imported_elsewhere(osd, taught, tmp_path):
    taught.store.routes.pin("acme", "german")
    assert osd("router", "export", "routes.json", "--examples").stdout.strip() == "routes.json"
    kept = json.loads((tmp_path / "routes.json").read_text())
    assert {route["name"] for route in kept["routes"]} == {"default", "german", "sql"}
    assert (kept["pins"], len(kept["examples"])) == ({"acme": "german"}, 10)
    assert json.loads(osd("router", "export").stdout) == {key: kept[key] for key in ("version", "routes", "pins")}
    for name in ("german", "sql"):
        taught.store.routes.remove(name)
    taught.store.examples.forget("cooking")
    done = said_json(osd("router", "import", "routes.json", "--json"))
    assert done == {"changes": 4, "revision": taught.store.routes.revision()}
    assert taught.store.routes.get("german") == Route("german", "sql", {"language": ["de"]})
    assert (taught.store.routes.pins(), taught.store.examples.counts()["cooking"]) == ({"acme": "german"}, 5)
    assert said_json(osd("router", "import", "routes.json", "--json"))["changes"] == 0
    again = osd("router", "export", "routes.json")
    assert again.exit_code == 5 and "exists" in again.stderr.lower()


def test_replacing_asks_and_removes_what_the_file_does_not_have(osd, taught, tmp_path):
    file = tmp_path / "less.json"
    file.write_text(json.dumps({"version": 1, "routes": [{"name": "sql", "draft": "default"}]}))
    before = state(taught)
    assert osd("router", "import", file, "--replace", stdin="no\n").exit_code == 1
    refuse(osd, taught, "Give --yes to go on", "import", file, "--replace")
    assert state(taught) == before
    assert osd("router", "import", file, "--replace", "--yes").exit_code == 0
    assert taught.store.routes.list() == [Route(), Route("sql")]


ROUTE = {"name": "new", "draft": "sql"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"version": 1, "route": []}, "Unknown key 'route' in the file; did you mean 'routes'?"),
        ({"version": 1, "routes": [ROUTE, {**ROUTE, "name": "b", "match": {}}]},
         "Unknown key 'match' in route 2; did you mean 'matches'?"),
        ({"version": 1, "routes": [ROUTE], "examples": [{"topic": "a", "test": "b"}]}, "Unknown key 'test' in example"),
        ({"version": 1, "routes": [{**ROUTE, "matches": {"topics": ["a"]}}]}, "cannot match by 'topics'; did you mean"),
        ({"version": 2, "routes": []}, "Its version is 2, this osd reads 1"),
        ({"routes": []}, "Its version is None"),
        ({"version": 1, "routes": [ROUTE, ROUTE]}, "It has two routes named 'new'"),
        ({"version": 1, "routes": [ROUTE, {"name": "b"}]}, "The route 'b' has no draft"),
        ({"version": 1, "routes": [ROUTE, {"name": "b", "draft": "coder"}]}, "no draft named 'coder'"),
        ({"version": 1, "routes": [ROUTE, {"draft": "sql"}]}, "Route 2 has no name"),
        ({"version": 1, "routes": [ROUTE, {**ROUTE, "name": "b", "matches": {"pattern": "("}}]}, "does not compile"),
        ({"version": 1, "routes": [ROUTE], "pins": {"acme": "nowhere"}}, "no route named 'nowhere'"),
        ({"version": 1, "routes": [ROUTE], "pins": {"acme": 3}}, "The pin of 'acme' is not the name"),
        ({"version": 1, "routes": {"new": {}}}, "'routes' is no list"),
        ({"version": 1, "routes": ["new"]}, "There should be a JSON object for route 1"),
        ({"version": 1, "routes": [{**ROUTE, "candidates": "sql"}]}, "are no list of drafts"),
        ({"version": 1, "routes": [ROUTE], "examples": [{"topic": "a", "text": ""}]}, "An example of 'a' is empty"),
        ([], "There should be a JSON object for the file"),
    ],
)  # fmt: skip
def test_a_file_with_a_fault_changes_nothing(osd, taught, tmp_path, content, words):
    file = tmp_path / "bad.json"
    file.write_text(json.dumps(content))
    refuse(osd, taught, words, "import", file, status=3 if words.startswith("no ") else 2)


def test_a_file_that_is_no_json_changes_nothing(osd, taught, tmp_path):
    (tmp_path / "bad.json").write_text("{")
    refuse(osd, taught, "bad.json: It is not JSON", "import", "bad.json")
    refuse(osd, taught, "nowhere.json: It cannot be read", "import", "nowhere.json")


# explain, eval


def test_explain_says_what_was_seen_and_why(osd, taught):
    facts = said_json(osd("router", "explain", SQL[1], "--json"))
    assert (facts["route"], facts["draft"], facts["reason"]) == ("sql", "sql", "topic=databases")
    assert facts["topic"] == "databases" and facts["confidence"] == facts["topic_confidence"] > 0.6
    assert facts["estimates"] == [
        {"draft": "sql", "chosen": True, "alpha": None, "tokens_per_s": None, "requests": 0, "measured": "not yet"}
    ]
    shown = osd("router", "explain", GERMAN).stdout
    assert "language=de" in shown and "german" in shown


def test_explain_knows_how_drafts_did(osd, taught):
    taught.store.routes.change(Route("default", "default", candidates=("sql",)))
    facts = said_json(osd("router", "explain", "Tell me something.", "--language", "en", "--json"))
    assert facts["route"] == "default" and facts["language"] == "en"
    first, second = facts["estimates"]
    assert (first["alpha"], first["tokens_per_s"], first["requests"]) == (0.75, pytest.approx(5000 / 3), 6)
    assert (first["measured"], second["measured"]) == ("on this route", "not yet")


def test_explain_honours_what_a_request_says(osd, taught):
    taught.store.routes.pin("acme", "german")
    taught.store.routes.add(Route("poet", "default", {"model": ["org/poet"]}))
    for options, route, reason in (
        (["--route", "german"], "german", "asked for by name"),
        (["--tenant", "acme"], "german", "acme is pinned"),
        (["--language", "de-AT"], "german", "language=de"),  # nobody taught databases in German
        (["--model", "org/poet"], "poet", "model=org/poet"),
    ):
        facts = said_json(osd("router", "explain", SQL[1], *options, "--json"))
        assert (facts["route"], facts["reason"]) == (route, reason)
    assert osd("router", "explain", SQL[1], "--route", "nowhere").exit_code == 3


def test_explain_changes_nothing(osd, taught):
    before = state(taught)
    osd("router", "explain", GERMAN)
    assert state(taught) == before


def test_eval_counts_what_is_right(osd, taught, tmp_path):
    lines = [{"prompt": text, "route": "sql", "topic": "databases"} for text in SQL]
    lines += [{"prompt": text, "domain": "default", "topic": "cooking"} for text in COOKING]
    lines += [
        {"prompt": GERMAN, "route": "german", "language": "de"},
        {"prompt": SQL[2], "route": "german", "tag": "de"},
    ]
    report = said_json(osd("router", "eval", write_lines(tmp_path / "eval.jsonl", lines), "--json"))
    assert report["prompts"] == 12 and 0.6 < report["confidence"] <= 1
    assert report["route"]["confusion"] == {
        "sql": {"sql": 5},
        "default": {"default": 5},
        "german": {"german": 2},
    }
    assert report["route"]["accuracy"] == 1.0
    assert (report["topic"]["accuracy"], report["topic"]["prompts"]) == (1.0, 10)
    assert (report["language"]["accuracy"], report["language"]["prompts"]) == (1.0, 1)
    assert report["alpha"] == {"default": 0.75, "german": None, "sql": None}
    shown = osd("router", "eval", tmp_path / "eval.jsonl").stdout
    assert "route: 1.000 of 12 right" in shown


def test_eval_goes_on_after_a_bad_line_and_refuses_a_file_without_prompts(osd, taught, tmp_path):
    (tmp_path / "some.jsonl").write_text('{"prompt": "hello", "route": "default"}\nnonsense\n')
    done = osd("router", "eval", tmp_path / "some.jsonl", "--json")
    assert said_json(done)["prompts"] == 1 and "line 2 is not JSON" in done.stderr
    (tmp_path / "none.jsonl").write_text("nonsense\n")
    refuse(osd, taught, "there is no prompt in it", "eval", tmp_path / "none.jsonl")
    refuse(osd, taught, "cannot be read", "eval", "nowhere.jsonl")
