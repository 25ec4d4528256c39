"""`osd doctor`: every part is looked at, what is broken is named with what mends it, nothing kept is changed."""

import json
import re
import shutil
import socket
import sqlite3
from contextlib import closing
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from osd.cli import checks, serving_checks
from osd.cli.context import CommandContext
from osd.cli.serving_checks import ports
from osd.server.start import SHIPPED
from storage import records
from storage.access.processes import Trainer
from storage.settings import load_settings

PARTS = ["python", "packages", "settings", "device", "data directory", "database", "broker", "pair"]


def findings(done) -> dict[str, dict[str, str]]:
    return {row["part"]: row for row in json.loads(done.stdout)}


def test_a_sound_machine(osd, data: Path):
    done = osd("doctor", "--json")
    found = findings(done)
    assert [part for part in PARTS if part not in found] == []
    assert {part: row["found"] for part, row in found.items() if row["state"] == "broken"} == {}
    assert done.exit_code == 0
    assert "torch" in found["packages"]["found"]
    assert not data.exists()


def test_a_look_makes_no_folder_for_weights(osd, only, data: Path, tmp_path: Path):
    only(checks.disk, checks.database, checks.places, checks.weights)
    elsewhere = {"OSD_STORAGE__URL": f"sqlite:///{tmp_path / 'elsewhere.db'}"}
    osd("db", "upgrade", **elsewhere)
    assert findings(osd("doctor", "--json", **elsewhere))["database"]["state"] == "ok"
    assert not data.exists()


def test_broken_parts_are_named_with_what_mends_them(osd, filled):
    version = filled.store.versions.get(filled.child)
    (filled.store.versions.folder(version) / "model.safetensors").write_bytes(b"damaged")
    wrong = {
        "OSD_TRAINER__BROKER": "redis://:secret@127.0.0.1:1",
        "OSD_SERVE__TARGET": "nowhere",
        "OSD_SERVE__DRAFT": "x",
    }
    done = osd("doctor", "--json", **wrong)
    found = findings(done)
    assert done.exit_code == 1
    assert {part for part, row in found.items() if row["state"] == "broken"} == {"draft default", "broker", "pair"}
    assert "osd drafts rollback default" in found["draft default"]["mend"]
    assert "127.0.0.1" in found["broker"]["found"]
    assert "secret" not in done.output
    assert "osd drafts rollback default" in osd("doctor", **wrong).stdout


def test_a_model_that_is_not_whole_is_no_sound_pair(osd, only, tmp_path: Path):
    only(serving_checks.pair)
    target = Path(shutil.copytree(SHIPPED / "target", tmp_path / "target"))
    tensors, config = load_file(target / "model.safetensors"), target / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "tie_word_embeddings": False}))
    tensors.pop("lm_head.weight", None)
    save_file(tensors, target / "model.safetensors")
    pair = {"OSD_SERVE__TARGET": str(target), "OSD_SERVE__DRAFT": str(SHIPPED / "draft")}
    found = findings(osd("doctor", "--json", **pair))["pair"]
    assert found["state"] == "broken" and "lack lm_head.weight" in found["found"]


def test_settings_that_cannot_be_read_end_the_look_early(osd, tmp_path: Path):
    (tmp_path / "osd.toml").write_text("[serve]\nmax_bach = 4\n")
    done = osd("doctor", "--json")
    assert done.exit_code == 1
    assert [row["part"] for row in json.loads(done.stdout)] == ["python", "packages", "settings"]
    assert "did you mean 'max_batch'" in done.stdout


def test_a_rule_and_a_drafter_that_there_are_not_are_named(osd, only):
    only(serving_checks.choices)
    for key in ("gamma.rule", "drafters.kind"):
        done = osd("doctor", "--json", **{f"OSD_{key.replace('.', '__')}".upper(): "clairvoyant"})
        wrong = [row["found"] for row in json.loads(done.stdout) if row["state"] == "broken"]
        assert done.exit_code == 1 and len(wrong) == 1 and f"{key}: there is no" in wrong[0]


def test_a_database_may_be_empty_and_must_answer(osd, only, data: Path):
    only(checks.database)
    data.mkdir()
    (data / "osd.db").touch()
    assert findings(osd("doctor", "--json"))["database"]["state"] == "ok"
    done = osd("doctor", "--json", OSD_STORAGE__URL="postgresql+psycopg://nobody@127.0.0.1:1/none")
    assert findings(done)["database"]["state"] == "broken"


def test_a_newer_database_asks_for_a_newer_osd(osd, only, data: Path):
    only(checks.database)
    assert osd("db", "upgrade").exit_code == 0
    with closing(sqlite3.connect(data / "osd.db")) as database:
        database.execute("UPDATE alembic_version SET version_num = '9999'")
        database.commit()
    assert findings(osd("doctor", "--json"))["database"]["mend"] == "update osd"
    for command in ("check", "upgrade"):
        done = osd("db", command)
        assert done.exit_code == 5 and "Update osd" in done.stderr and "osd db upgrade" not in done.stderr


def test_a_pair_of_the_command_line_is_the_one_that_is_tried(osd, only, tmp_path: Path):
    only(serving_checks.pair)
    found = findings(osd("doctor", "--json", "--target", SHIPPED / "target", "--draft", SHIPPED / "draft"))["pair"]
    assert found["state"] == "ok" and found["found"].startswith(f"{SHIPPED / 'target'} with {SHIPPED / 'draft'}")
    wrong = findings(osd("doctor", "--json", "--target", tmp_path, "--draft", SHIPPED / "draft"))["pair"]
    assert wrong["state"] == "broken" and str(tmp_path) in wrong["found"] and "--target" in wrong["mend"]
    alone = osd("doctor", "--json", "--target", SHIPPED / "target", "--drafter", "lookup")
    assert "with no draft model" in findings(alone)["pair"]["found"]


def context(**sections) -> CommandContext:
    made = CommandContext()
    made.settings = load_settings(**sections)
    return made


def test_what_keys_and_values_may_take_is_told(osd, only):
    only(serving_checks.pair)
    asked = {"OSD_SERVE__MAX_BATCH": "32", "OSD_SERVE__MAX_LENGTH": "1000"}
    found = findings(osd("doctor", "--json", **asked))["KV cache"]
    assert found["state"] == "ok" and re.fullmatch(
        r"384 KiB a block of 32 tokens; 1,0\d\d blocks at most, 4\d\d MB", found["found"]
    )
    bounded = findings(osd("doctor", "--json", **asked, OSD_SERVE__CACHE_MB="100"))["KV cache"]["found"]
    assert re.search(r"; 265 blocks at most, 104 MB, where 32 rows of 1,0\d\d would take 4\d\d$", bounded)
    short = findings(osd("doctor", "--json", **asked, OSD_SERVE__CACHE_MB="1"))["KV cache"]
    assert short["state"] == "broken" and "serve.cache_mb" in short["found"]


def test_a_port_that_is_taken_is_named(data: Path):
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        (found,) = ports(context(server={"port": taken.getsockname()[1], "admin_port": 0}))
    assert (found.part, found.state) == ("server.port", "warning") and "cannot listen" in found.found
    assert list(ports(context(server={"port": 0, "admin_port": 0}))) == []


def test_a_trainer_that_lives_is_found_and_one_that_is_gone_is_not(filled):
    here, now = context(storage={"directory": filled.store.directory}), records.now()
    assert [one.state for one in checks.trainers(here)] == ["warning"]
    for name, until in (("gone", now - 1), ("here", now + 60)):
        filled.store.trainers.beat(Trainer(name, "host", 1, now, now, until, {"draft": "default"}))
    (found,) = checks.trainers(here)
    assert (found.state, found.found) == ("ok", "1 training")


def test_a_library_that_serving_lacks_is_named(monkeypatch):
    there = checks.installed
    monkeypatch.setattr(checks, "installed", lambda name: None if name == "uvicorn" else there(name))
    (found,) = [one for one in checks.packages(CommandContext()) if one.part == "serving"]
    assert found.state == "warning" and "uvicorn" in found.found and "[serve]" in found.mend


def test_a_gpu_that_is_not_there_and_a_disk_that_is_full_are_named(tmp_path: Path, monkeypatch):
    (found,) = checks.device(context(serve={"device": "cuda"})) if not torch.cuda.is_available() else (None,)
    assert found is None or (found.state, "auto" in found.mend) == ("broken", True)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1, 1, 10**8))  # type: ignore[attr-defined]
    (full,) = checks.disk(context(storage={"directory": tmp_path}))
    assert full.state == "broken" and "purge" in full.mend
    monkeypatch.setattr("os.access", lambda *_: False)
    (nowhere,) = checks.disk(context(storage={"directory": tmp_path / "not ours"}))
    assert nowhere.state == "broken" and "storage.directory" in nowhere.mend
