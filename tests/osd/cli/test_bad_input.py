"""Bad input, as a person would give it: one clear line, an exit status, nothing half-written.

Every case runs the command. Cases that end before a model is loaded run in this process; the rest too, with the
pair that ships with osd. One runs a real process, to see that no traceback leaks from the console script.
"""

import json
from pathlib import Path

import pytest

from osd.engine.engine import Engine
from osd.models.pair import load_pair
from osd.server.start import SHIPPED
from storage.errors import BadRequest
from storage.records import Request
from tests.support.settings import settings_of


def said(done) -> str:
    """The one thing that stderr says, without the remark on the shipped pair."""
    return "".join(line for line in done.stderr.splitlines(keepends=True) if "ships with osd" not in line)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["", "--max-tokens", "4"], "prompt: it is empty"),
        (["  \n", "--max-tokens", "4"], "prompt: it is empty"),
        (["word " * 3000], "; shorten it"),
        (["hello", "--temperature", "-1"], "-1.0 is not a temperature"),
        (["hello", "--temperature", "nan"], "nan is not a temperature"),
        (["hello", "--temperature", "inf"], "inf is not a temperature"),
        (["hello", "--max-tokens", "0"], "0 asks for nothing"),
        (["hello", "--top-k", "-2"], "-2 keeps no token"),
        (["hello", "--top-p", "1.5"], "1.5 is outside"),
        (["hello", "--stop", ""], "empty stop string"),
        (["hello", "--seed", "-5"], "-5 is negative"),
    ],
)
def test_a_request_that_cannot_be_served(osd, arguments, words):
    done = osd("generate", "--no-learn", *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert words in said(done)
    assert said(done).startswith("osd: ") and said(done).count("\n") == 1


def test_a_refused_request_leaves_nothing_in_the_store(osd):
    osd("generate", "hello", "--temperature", "-1")
    assert json.loads(osd("replay", "stats", "--json").stdout) == []
    assert json.loads(osd("stats", "acceptance", "--json").stdout) == []


def test_a_route_that_is_not_there(osd):
    done = osd("generate", "hello", "--route", "poetry")
    assert done.exit_code == 3
    assert "no route named 'poetry'; known: default" in said(done)


@pytest.mark.parametrize("token", [-1, 10**9])
def test_a_token_id_that_is_none(token):
    pair = load_pair(SHIPPED / "target", SHIPPED / "draft")
    engine = Engine(pair, settings_of())
    with pytest.raises(BadRequest, match=f"token 1 is {token}, and ids run from 0 to {pair.vocab_size - 1}"):
        engine.submit(Request((1, token)))
    assert not engine.busy


def test_a_file_of_prompts_that_is_not_there(osd):
    done = osd("generate", "--prompts", "nowhere.jsonl", "--no-learn")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "nowhere.jsonl: cannot be read" in said(done)


@pytest.mark.parametrize("pair", [("nowhere", "target"), ("target", "nowhere")])
def test_a_model_folder_that_is_not_there(osd, tmp_path: Path, pair):
    folders = [SHIPPED / "target" if name == "target" else tmp_path / name for name in pair]
    done = osd("generate", "hello", "--target", folders[0], "--draft", folders[1])
    assert done.exit_code == 4
    assert "nowhere" in said(done) and "no such folder" in said(done)


def test_an_unknown_setting_in_osd_toml_is_named_with_its_neighbour(osd, tmp_path: Path):
    (tmp_path / "osd.toml").write_text("[learn]\nintervall_requests = 4\n")
    for command in (["drafts", "list"], ["generate", "hello"], ["trainer"]):
        done = osd(*command)
        assert (done.exit_code, done.stdout) == (2, "")
        assert "learn.intervall_requests" in said(done) and "did you mean 'interval_requests'" in said(done)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[serve]\nmax_batch = 0\n", "serve.max_batch"),
        ("[serve\n", "syntax"),
        ("[gate]\nconfidence = 2.0\n", "gate.confidence"),
    ],
)
def test_a_setting_out_of_range_or_a_broken_file(osd, tmp_path: Path, text, words):
    (tmp_path / "mine.toml").write_text(text)
    done = osd("--config", "mine.toml", "drafts", "list")
    assert done.exit_code == 2
    assert "mine.toml" in said(done) and words in said(done)


def test_a_misspelt_variable(osd):
    done = osd("drafts", "list", OSD_LERN__INTERVAL_REQUESTS="4")
    assert done.exit_code == 2
    assert "did you mean 'learn'" in said(done)


@pytest.mark.parametrize("command", [["drafts", "list"], ["db", "check"], ["db", "upgrade"], ["generate", "hello"]])
def test_a_database_that_does_not_answer(osd, command):
    done = osd(*command, OSD_STORAGE__URL="postgresql+psycopg://nobody:secret@127.0.0.1:1/none")
    assert (done.exit_code, done.stdout) == (5, "")
    assert "127.0.0.1:1" in said(done) and "secret" not in said(done)


@pytest.mark.parametrize("url", ["nonsense", "oracle://x/y"])
def test_a_database_url_that_is_none(osd, url):
    done = osd("drafts", "list", OSD_STORAGE__URL=url)
    assert done.exit_code == 2
    assert "storage.url" in said(done)


@pytest.mark.parametrize(
    "command",
    [
        ["drafts", "show", "default-000009-ffffffff"],
        ["drafts", "promote", "default-000009-ffffffff", "--yes"],
        ["drafts", "rollback", "--to", "default-000009-ffffffff", "--yes"],
        ["drafts", "export", "default-000009-ffffffff", "plain"],
    ],
)
def test_a_version_that_is_not_there(osd, filled, tmp_path: Path, command):
    done = osd(*command)
    assert (done.exit_code, done.stdout) == (3, "")
    assert "no draft version 'default-000009-ffffffff'" in said(done)
    assert not (tmp_path / "plain").exists()
    assert filled.store.versions.current("default").id == filled.child


def test_a_draft_that_is_not_there(osd):
    done = osd("drafts", "rollback", "nobody", "--yes")
    assert done.exit_code == 3
    assert "no draft named 'nobody'" in said(done)


def test_the_console_script_shows_no_traceback(osd_process, tmp_path: Path):
    (tmp_path / "osd.toml").write_text("[serve]\nmax_bach = 2\n")
    done = osd_process("drafts", "list")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1 and "did you mean 'max_batch'" in done.stderr
