"""`osd replay forget`, `retain`, `compact`, `verify`, `import`, `log` over a store that holds a few requests."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from osd.drafters.ngram.files import keep_table
from osd.drafters.ngram.table import Table, TableSettings
from storage.replay.segments import FORMAT, FORMAT_KEY
from tests.osd.cli.conftest import samples


def kept(filled) -> int:
    return sum(row.requests for row in filled.store.samples.stats())


def test_forgetting_a_request_names_the_versions(osd, filled):
    done = osd("replay", "forget", "--request", "request-3", "--yes", "--json")
    answer = json.loads(done.stdout)
    assert (answer["requests"], answer["outcomes"], answer["versions"]) == (1, 1, [filled.child])
    assert answer["serving"] == [filled.child], "it is named that this one serves"
    assert kept(filled) == 5
    again = osd("replay", "forget", "--tenant", "odd", "--yes")
    assert filled.child in again.stdout and "● serves" in again.stdout
    assert "Forgot 2 requests" in again.stderr
    (newest, first) = json.loads(osd("replay", "log", "--json").stdout)
    assert (newest["subject"], first["subject"], newest["action"]) == ("odd", "request-3", "replay forget")
    told = osd("replay", "log").stdout
    assert "requests 2" in told and filled.child in told and "{" not in told


def test_forgetting_deletes_tables_of_n_grams(osd, filled, tmp_path):
    """Also where nothing is known of the request any more."""
    table, ids = Table(TableSettings(memory=1 << 20)), ("request-3", "request-1", "gone-long-ago")
    answers = []
    for number, request in enumerate(ids):
        table.learn(np.arange(100 * number, 100 * number + 50))
        table.born = filled.store.forgetter.news(0).line
        kept = keep_table(filled.store.versions, "ngram", table, "digest")
        answers.append(osd("replay", "forget", "--request", request, "--yes", *(["--json"] if number == 0 else [])))
        assert not filled.store.versions.folder(kept).exists()
    assert json.loads(answers[0].stdout)["tables"] == 1
    assert "Deleted 1 version of n-gram tables" in answers[1].stderr
    assert answers[2].exit_code == 3


def test_forgetting_asks_and_needs_to_be_told_what(osd, filled):
    assert osd("replay", "forget", "--tenant", "odd", stdin="n\n").exit_code == 1
    assert osd("replay", "forget", "--yes").exit_code == 2
    assert osd("replay", "forget", "--tenant", "odd", "--request", "request-1", "--yes").exit_code == 2
    done = osd("replay", "forget", "--request", "nobody", "--yes")
    assert (done.exit_code, done.stdout) == (3, "")
    assert "no request 'nobody'" in done.stderr
    assert kept(filled) == 6


def test_a_purge_of_everything_wants_to_hear_it(osd, filled):
    done = osd("replay", "purge", "--yes")
    assert done.exit_code == 2
    assert "--all" in done.stderr
    assert kept(filled) == 6
    assert osd("replay", "purge", "--all", "--yes").exit_code == 0
    assert kept(filled) == 0
    assert json.loads(osd("replay", "log", "--json").stdout)[0]["after"]["all"] is True


def test_retention_by_the_settings(osd, filled):
    assert "everything stays" in osd("replay", "retain").stderr
    counted = osd("replay", "retain", "--dry-run", "--json", OSD_RETENTION__REQUESTS="4")
    assert json.loads(counted.stdout)["by_rule"] == {"requests": 2}
    assert kept(filled) == 6
    done = osd("replay", "retain", OSD_RETENTION__REQUESTS="4")
    assert "Ended 2 requests (2 by requests)" in done.stderr
    assert kept(filled) == 4
    wrong = osd("replay", "retain", OSD_RETENTION__BYTES="-7")
    assert (wrong.exit_code, wrong.stdout) == (2, "")
    assert "retention.bytes" in wrong.stderr


def test_compaction(osd, filled):
    assert "no small segments" in osd("replay", "compact").stderr
    filled.store.samples.add([samples(number, filled.root) for number in (6, 7)])
    assert json.loads(osd("replay", "compact", "--json").stdout)["after"] == 1
    assert len(list(filled.store.samples.folder.rglob("*.parquet"))) == 1
    assert kept(filled) == len(filled.store.samples.read([f"request-{number}" for number in range(8)])) == 8


def test_verify_finds_what_is_wrong(osd, filled):
    assert json.loads(osd("replay", "verify", "--json").stdout)["faults"] == []
    (path,) = filled.store.samples.folder.rglob("*.parquet")
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 0xFF
    path.write_bytes(content)
    done = osd("replay", "verify", "--json")
    assert done.exit_code == 5
    assert [fault["segment"] for fault in json.loads(done.stdout)["faults"]] == [path.stem]
    path.unlink()
    done = osd("replay", "verify")
    assert (done.exit_code, done.stdout) == (5, "")
    assert "the file is missing" in done.stderr


def test_what_was_exported_can_be_imported_again(osd, filled, tmp_path):
    assert osd("replay", "export", "all.parquet").exit_code == 0
    osd("replay", "purge", "--request", "request-1", "--yes")
    osd("replay", "purge", "--request", "request-2", "--yes")
    done = osd("replay", "import", "all.parquet", "--json")
    counts = {"requests": 2, "positions": 6, "known": 4}
    assert json.loads(done.stdout) == {**counts, "unusable": 0, "unusable_lines": []}
    assert kept(filled) == 6
    (back,) = filled.store.samples.read(["request-1"])
    assert (back.tenant, back.tokens.tolist()) == ("odd", list(range(1, 9)))


@pytest.mark.parametrize("kind", ["newer", "damaged", "missing", "other"])
def test_a_file_that_cannot_be_imported_leaves_nothing(osd, filled, tmp_path, kind):
    path = tmp_path / "all.parquet"
    osd("replay", "export", path)
    osd("replay", "purge", "--all", "--yes")
    if kind == "newer":
        found = pq.read_table(path)
        pq.write_table(found.replace_schema_metadata({FORMAT_KEY: str(FORMAT + 1)}), path)
    elif kind == "damaged":
        path.write_bytes(path.read_bytes()[:-40])
    elif kind == "missing":
        path.unlink()
    else:
        pq.write_table(pq.read_table(path).select(["tokens"]), path)
    done = osd("replay", "import", path)
    assert (done.exit_code, done.stdout) == (2, "")
    newer = f"of format {FORMAT + 1}, and this osd reads up to {FORMAT}"
    words = {"newer": newer, "missing": "no such file"}
    assert words.get(kind, "no whole file of `osd replay export`") in done.stderr
    assert "Nothing was kept" in done.stderr
    assert kept(filled) == 0


def test_what_a_tenant_allows(osd, filled):
    assert json.loads(osd("replay", "tenant", "odd", "--json").stdout) == [
        {"name": "odd", "learn": True, "share": True}
    ]
    assert osd("replay", "tenant", "odd", "--no-learn").exit_code == 0
    assert json.loads(osd("replay", "tenant", "--json").stdout) == [{"name": "odd", "learn": False, "share": True}]
    filled.store.samples.add([samples(number, filled.root) for number in (20, 21)])
    assert filled.store.samples.recent(limit=9).count("request-21") == 0
    assert kept(filled) == 7
    done = osd("replay", "tenant", "*", "--no-share")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "names no tenant" in done.stderr
