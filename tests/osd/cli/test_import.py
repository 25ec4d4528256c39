"""`osd replay import` of conversations into a store that knows nothing yet."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import AutoTokenizer

from osd.models.model_digest import model_digest
from osd.server.start import SHIPPED
from storage.records import TokenKind
from storage.settings import load_settings
from storage.store import open_store

TARGET, DRAFT = SHIPPED / "target", SHIPPED / "draft"


@pytest.fixture
def logged(tmp_path: Path) -> Path:
    """Three conversations of different forms, one line that is none, one that is there twice."""
    user, said = {"role": "user", "content": "How many shops?"}, {"role": "assistant", "content": "SELECT COUNT(*)"}
    lines = [
        {"prompt": "List shops.", "response": "SELECT name FROM shops"}, {"messages": [user, said]}, {"prompt": 1},
        {"request": {"messages": [user]}, "response": {"choices": [{"message": {"content": "SELECT 1"}}]}},
        {"prompt": "List shops.", "response": "SELECT name FROM shops"},
    ]  # fmt: skip
    path = tmp_path / "logged.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def test_an_empty_store_begins_with_what_somebody_has(osd, logged, data):
    done = osd("replay", "import", logged, "--target", TARGET, "--draft", DRAFT, "--route", "sql", "--json")
    assert json.loads(done.stdout)["requests"] == 3 and "line 3" in done.stderr
    again = osd("replay", "import", logged, "--target", TARGET, "--route", "sql")
    assert "Kept 0 requests" in again.stderr
    with open_store(load_settings(storage={"directory": data})) as store:
        version = store.versions.current("sql", model_digest(str(TARGET)))
        assert version.number == 0 and store.routes.get("sql").draft == "sql"
        kept = store.samples.recent(limit=10, routes=["sql"], target=model_digest(str(TARGET)))
        samples = store.samples.read(kept)
    assert {one.draft_version for one in samples} == {version.id}
    assert all((one.kinds == TokenKind.UNDRAFTED).all() and len(one) for one in samples)


def test_sharegpt_in_parquet_with_bad_rows(osd, tmp_path, data):
    """Every turn is learned, its end too; each row that cannot be used is named, and the others go on."""
    turns = [("human", "List shops."), ("gpt", "SELECT name FROM shops"), ("human", "How many?"), ("gpt", "SELECT 3")]
    good = [{"from": name, "value": text} for name, text in turns]
    rows = [{"conversations": good[:1] if n % 3 == 1 else good} for n in range(24)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "chats.parquet")
    options = "--target", TARGET, "--draft", DRAFT
    done = osd("replay", "import", tmp_path / "chats.parquet", *options, "--turns", "all", "--json")
    said = json.loads(done.stdout)
    assert (said["requests"], said["known"], said["unusable"]) == (2, 30, 8)
    assert [one["line"] for one in said["unusable_lines"]] == list(range(2, 25, 3))
    assert done.stderr.count("osd: ") == 5 and "line 2 is refused: response:" in done.stderr
    with open_store(load_settings(storage={"directory": data})) as store:
        kept = store.samples.read(store.samples.recent(limit=9))
    end = AutoTokenizer.from_pretrained(TARGET).eos_token_id
    assert {int(one.tokens[-1]) for one in kept} == {end} and all(
        one.positions[-1] == len(one.tokens) - 1 for one in kept
    )
    again = osd("replay", "import", tmp_path / "chats.parquet", *options)
    assert "Kept 0 requests" in again.stderr and "(behind those above: 17, 20, 23)" in again.stderr


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--target", TARGET], "name the model that is to learn with --draft"),
        ([], "name it with --target"),
        (["--target", TARGET, "--route", "sql"], "no route named 'sql'"),
        (["--target", TARGET, "--draft", "./nowhere"], "There is no such folder"),
        (["--target", "./nowhere", "--draft", DRAFT], "There is no such folder"),
    ],
)
def test_what_is_missing_is_said_and_nothing_is_kept(osd, logged, data, options, says):
    done = osd("replay", "import", logged, *options)
    assert done.exit_code in (2, 3, 4) and says in done.stderr
    with open_store(load_settings(storage={"directory": data})) as store:
        assert not store.versions.list() and [one.name for one in store.routes.list()] == ["default"]
        assert not store.samples.stats()


def test_a_draft_that_began_otherwise_is_not_replaced(osd, logged):
    assert osd("replay", "import", logged, "--target", TARGET, "--draft", DRAFT).exit_code == 0
    refused = osd("replay", "import", logged, "--target", TARGET, "--draft", TARGET)
    assert refused.exit_code and "default" in refused.stderr
