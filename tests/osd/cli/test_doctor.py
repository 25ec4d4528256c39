"""`osd doctor`: every part is looked at, what is broken is named with what mends it, nothing kept is changed."""

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from safetensors.torch import load_file, save_file

from osd.server.start import SHIPPED

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


def test_a_look_makes_no_folder_for_weights(osd, data: Path, tmp_path: Path):
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


def test_a_model_that_is_not_whole_is_no_sound_pair(osd, tmp_path: Path):
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


def test_a_rule_and_a_drafter_that_there_are_not_are_named(osd):
    for key in ("gamma.rule", "drafters.kind"):
        done = osd("doctor", "--json", **{f"OSD_{key.replace('.', '__')}".upper(): "clairvoyant"})
        wrong = [row["found"] for row in json.loads(done.stdout) if row["state"] == "broken"]
        assert done.exit_code == 1 and len(wrong) == 1 and f"{key}: there is no" in wrong[0]


def test_a_database_may_be_empty_and_must_answer(osd, data: Path):
    data.mkdir()
    (data / "osd.db").touch()
    assert findings(osd("doctor", "--json"))["database"]["state"] == "ok"
    done = osd("doctor", "--json", OSD_STORAGE__URL="postgresql+psycopg://nobody@127.0.0.1:1/none")
    assert findings(done)["database"]["state"] == "broken"


def test_a_newer_database_asks_for_a_newer_osd(osd, data: Path):
    assert osd("db", "upgrade").exit_code == 0
    with closing(sqlite3.connect(data / "osd.db")) as database:
        database.execute("UPDATE alembic_version SET version_num = '9999'")
        database.commit()
    assert findings(osd("doctor", "--json"))["database"]["mend"] == "update osd"
    for command in ("check", "upgrade"):
        done = osd("db", command)
        assert done.exit_code == 5 and "Update osd" in done.stderr and "osd db upgrade" not in done.stderr
