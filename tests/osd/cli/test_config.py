"""`osd config`, `osd use`, and whose store it is."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from osd.demo import DRAFT, TARGET
from osd.server.start import PairNames, with_own_store
from storage.settings import load_settings
from storage.settings.settings import flat, in_force

OWN = """# mine
[serve]
max_batch = 4   # four

target = "old"
[storage]
"""


def rows(done) -> dict[str, tuple[object, str]]:
    return {row["key"]: (row["value"], row["source"]) for row in json.loads(done.stdout)}


def test_every_setting_is_shown_with_its_source(osd, tmp_path: Path):
    (tmp_path / "osd.toml").write_text("[learn]\nepochs = 5\n[trainer]\nnice = 2\n[gamma.fsm]\nmax = 3\n")
    variables = {"OSD_LEARN__SEED": "7", "OSD_TRAINER__THREADS": "3", "OSD_RETENTION__VERSIONS": '{"served": 3}'}
    url = "postgresql://me:secret@there/osd"
    found = rows(osd("config", "--json", OSD_STORAGE__URL=url, **variables))
    assert found["learn.epochs"] == (5, "osd.toml") and found["trainer.nice"] == (2, "osd.toml")
    assert found["learn.seed"] == (7, "OSD_LEARN__SEED") and found["trainer.threads"] == (3, "OSD_TRAINER__THREADS")
    assert found["retention.versions.served"] == (3, "OSD_RETENTION__VERSIONS")
    assert found["storage.url"] == ("postgresql://me:***@there/osd", "OSD_STORAGE__URL")
    assert found["learn.method"] == ("full", "default") and found["storage.directory"][1] == "OSD_STORAGE__DIRECTORY"
    assert list(found) == [key for key, _ in flat(load_settings().model_dump(mode="json"))]


def test_it_is_narrowed(osd, tmp_path: Path):
    (tmp_path / "osd.toml").write_text("[learn]\nepochs = 5\n")
    assert set(rows(osd("config", "learn", "--json"))) == {
        one.key for one in in_force() if one.key.startswith("learn.")
    }
    assert set(rows(osd("config", "--changed", "--json"))) == {"learn.epochs", "storage.directory"}
    assert list(rows(osd("config", "learn.epochs", "--json"))) == ["learn.epochs"]
    unknown = osd("config", "leern")
    assert (unknown.exit_code, unknown.stdout) == (2, "") and "no setting 'leern'" in unknown.stderr


def test_use_writes_the_pair_and_leaves_the_rest(osd, tmp_path: Path):
    file = tmp_path / "osd.toml"
    (tmp_path / "big").mkdir()
    assert osd("use", "big", "some/draft").exit_code == 0
    assert tomllib.loads(file.read_text()) == {"serve": {"target": str(tmp_path / "big"), "draft": "some/draft"}}
    file.write_text(OWN)
    said = osd("use", "big", "other", "--data", tmp_path / "kept")
    assert said.exit_code == 0 and "some/draft" not in file.read_text(), said.stderr
    serve = {"max_batch": 4, "target": str(tmp_path / "big"), "draft": "other"}
    assert tomllib.loads(file.read_text()) == {"serve": serve, "storage": {"directory": str(tmp_path / "kept")}}
    assert "# mine" in file.read_text() and "# four" in file.read_text()
    assert load_settings(file).storage.directory == tmp_path / "kept"


@pytest.mark.parametrize("text", ["serve = {max_batch = 4}\n", '[serve]\ntarget = """\nold"""\n', "[serve\n"])
def test_a_file_that_cannot_be_changed_line_by_line_stays_as_it_is(osd, tmp_path: Path, text: str):
    file = tmp_path / "osd.toml"
    file.write_text(text)
    refused = osd("use", "a", "b")
    assert refused.exit_code == 2 and file.read_text() == text


def test_what_is_half_said_is_refused(osd):
    for arguments in ([], ["a"], ["a", "b", "--shipped"]):
        refused = osd("use", *arguments)
        assert refused.exit_code == 2 and "a TARGET and a DRAFT, or --shipped" in refused.stderr


def test_the_shipped_pair_has_a_store_of_its_own(osd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    toy, mine = PairNames(str(TARGET), str(DRAFT), shipped=True), PairNames("a", "b")
    plain = load_settings()
    assert with_own_store(mine, plain) == plain
    assert with_own_store(toy, plain).storage.directory == tmp_path / "home" / "osd" / "shipped"
    for named in ({"directory": tmp_path}, {"url": "sqlite:///x"}, {"weights": str(tmp_path)}):
        settings = load_settings(storage=named)
        assert with_own_store(toy, settings) == settings, "a store that was named is the one that is meant"


def test_with_use_shipped_other_commands_find_its_store(osd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    done = osd("use", "--shipped", OSD_STORAGE__DIRECTORY=str(tmp_path / "given"))
    assert done.exit_code == 0
    found = load_settings(tmp_path / "osd.toml")
    assert found.storage.directory == tmp_path / "given" / "shipped" and found.serve.target == str(TARGET)
