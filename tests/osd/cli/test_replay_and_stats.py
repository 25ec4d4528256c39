"""`osd replay`, `osd stats` and `osd db` over a store that holds a few requests."""

import csv
import io
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from osd.cli.stats import GROUPS
from storage.outcomes.outcomes import COLUMNS


def test_acceptance_by_version_as_json(osd, filled):
    rows = json.loads(osd("stats", "acceptance", "--by", "version", "--json").stdout)
    assert [(row["version"], row["requests"], row["alpha"]) for row in rows] == [(filled.root, 6, 0.75)]
    assert rows[0]["mean_acceptance_length"] == 2.5


def test_acceptance_by_tenant_as_csv(osd, filled):
    rows = list(csv.DictReader(io.StringIO(osd("stats", "acceptance", "--by", "tenant", "--csv").stdout)))
    assert [(row["tenant"], row["requests"]) for row in rows] == [("even", "3"), ("odd", "3")]


def test_acceptance_as_a_table(osd, filled):
    shown = osd("stats", "acceptance", "--by", "route,day", COLUMNS="200")
    assert "0.750" in shown.stdout
    assert shown.stderr == ""


def test_acceptance_since_tomorrow_is_nothing(osd, filled):
    done = osd("stats", "acceptance", "--since", "2999-01-01")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "No requests have been recorded that fit" in done.stderr


def test_acceptance_of_an_empty_store_speaks_of_no_time(osd):
    assert osd("stats", "acceptance").stderr == "No requests have been recorded yet.\n"


def test_a_group_that_is_none_is_named(osd, filled):
    done = osd("stats", "acceptance", "--by", "route,colour")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "'colour'" in done.stderr


def test_the_help_names_every_group():
    assert sorted(GROUPS) == sorted(COLUMNS)


def test_replay_stats_counts_what_is_kept(osd, filled):
    (row,) = json.loads(osd("replay", "stats", "--json").stdout)
    assert (row["route"], row["requests"], row["positions"], row["waiting"]) == ("default", 6, 18, 0)


def test_replay_export_writes_one_parquet_file(osd, filled, tmp_path: Path):
    done = osd("replay", "export", tmp_path / "all.parquet")
    assert done.stdout.strip() == str(tmp_path / "all.parquet")
    assert pq.read_table(tmp_path / "all.parquet").num_rows == 6


@pytest.mark.parametrize(
    ("options", "left"),
    [(["--request", "request-3"], 5), (["--tenant", "odd"], 3), (["--before", "1h"], 6), (["--everything"], 0)],
)
def test_purge_deletes_what_was_asked_for(osd, filled, options, left):
    done = osd("replay", "purge", *options, "--yes", "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["requests"] == 6 - left
    assert sum(row.requests for row in filled.store.samples.stats()) == left


def test_purge_asks_and_no_deletes_nothing(osd, filled):
    done = osd("replay", "purge", "--tenant", "odd", stdin="n\n")
    assert done.exit_code == 1
    assert "the samples of tenant odd" in done.stderr
    assert sum(row.requests for row in filled.store.samples.stats()) == 6


@pytest.mark.parametrize("options", [[], ["--tenant", "odd", "--everything"]])
def test_purge_wants_to_know_what(osd, filled, options):
    assert osd("replay", "purge", "--yes", *options).exit_code == 2


def test_purge_of_a_request_that_is_not_there(osd, filled):
    done = osd("replay", "purge", "--request", "nobody", "--yes")
    assert done.exit_code == 3
    assert "'nobody'" in done.stderr


def test_db_check_changes_nothing_and_upgrade_makes_it(osd, data: Path):
    before = osd("db", "check", "--json")
    assert before.exit_code == 5
    assert "osd db upgrade" in before.stderr
    assert json.loads(before.stdout)["current"] is False
    assert not (data / "osd.db").exists()
    assert osd("db", "upgrade").exit_code == 0
    after = osd("db", "check", "--json")
    assert (after.exit_code, json.loads(after.stdout)["current"]) == (0, True)


def test_what_a_restore_says_and_leaves(osd, data: Path, tmp_path: Path):
    copy, there = tmp_path / "copy", {"OSD_STORAGE__DIRECTORY": str(tmp_path / "there")}
    assert osd("db", "upgrade").exit_code == 0 and osd("db", "backup", str(copy)).exit_code == 0
    whole = (copy / "osd.db").read_bytes()
    (copy / "osd.db").write_bytes(whole[:-1])
    done = osd("db", "restore", str(copy), **there)
    assert (done.exit_code, done.stdout, (tmp_path / "there").exists()) == (5, "", False)
    assert "osd.db. Nothing was restored" in " ".join(done.stderr.split())
    (copy / "osd.db").write_bytes(whole)
    assert osd("db", "restore", str(copy), **there).exit_code == 0
    (line,) = json.loads(osd("audit", "--action", "db restore", "--json", **there).stdout)
    assert (line["action"], line["subject"]) == ("db restore", "copy")
