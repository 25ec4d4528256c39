"""`osd stats` in all its forms, over a store with a version that serves and one before it."""

import csv
import io
import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from osd.cli.stats import PLACE_GROUPS
from storage.insights.positions import GROUPS
from tests.osd.cli.conftest import outcome, samples

COMMANDS = ("acceptance", "positions", "change", "tokens", "rejections", "gain", "runs")
NOW = time.time()


@pytest.fixture
def served(filled):
    """Two hours of the first version, an hour of the second, better one; samples of both, every token 3 or 4."""
    made = []
    for minute in range(180):
        version, hits = (filled.root, 3 + minute % 2) if minute < 120 else (filled.child, 6 + minute % 2)
        facts = dict(accepted=hits, rejections=10 - hits, drafted=12, rounds=10, emitted=10 + hits, requests=1)
        places = ((10, hits, 10 - hits), (2, 0, 0))
        when = NOW - 60 * (180 - minute)
        one = replace(outcome(minute, version), finished_at=when, positions=places, verify_ms=30.0 + minute, **facts)
        made += [one, replace(one, drafted=8, verify_ms=20.0 + minute)]
    filled.store.outcomes.add(made, "test")
    for number, version in ((50, filled.root), (51, filled.child)):
        made = samples(number, version)
        made.tokens[:] = 3
        made.kinds[:], made.drafted[:] = [0, 0, 1 if version == filled.root else 0], [3, 3, 4]
        made.drafted[2] = 4 if version == filled.root else 3
        filled.store.samples.add([replace(made, request_id=f"token-{number}")])
    return filled


@pytest.fixture
def target(tmp_path: Path) -> Path:
    from safetensors.numpy import save_file

    (tmp_path / "target").mkdir()
    save_file({"weight": np.zeros(1000, np.float16)}, tmp_path / "target" / "model.safetensors")
    return tmp_path / "target"


def arguments(command: str, target: Path) -> list[str]:
    return {"rejections": ["--by", "token"], "gain": ["--target", str(target)]}.get(command, [])


@pytest.mark.parametrize("command", COMMANDS)
def test_table_json_csv_and_picture_say_the_same(osd, served, target, command, tmp_path: Path):
    options = arguments(command, target)
    table = osd("stats", command, *options)
    assert table.exit_code == 0, table.stderr
    assert len(table.stdout.splitlines()) > 2
    found = json.loads(osd("stats", command, *options, "--json").stdout)
    rows = found.get("drafts") or found.get("token") if isinstance(found, dict) else found
    lines = list(csv.DictReader(io.StringIO(osd("stats", command, *options, "--csv").stdout)))
    assert [list(line) for line in lines] == [list(row) for row in rows]
    assert lines
    drawn = osd("stats", command, *options, "--picture", tmp_path / "it.png")
    assert "Drawn into" in drawn.stderr
    assert (tmp_path / "it.png").read_bytes().startswith(b"\x89PNG")


def test_places_by_version(osd, served):
    rows = json.loads(osd("stats", "positions", "--by", "version", "--json").stdout)
    assert [(row["version"], row["position"]) for row in rows] == [
        (served.root, 0), (served.root, 1), (served.child, 0), (served.child, 1),
    ]  # fmt: skip
    assert (rows[0]["alpha"], rows[2]["alpha"], rows[1]["wasted"]) == (0.35, 0.65, 480)


def test_the_current_version_brought_something(osd, served):
    everywhere, route = json.loads(osd("stats", "change", "--json").stdout)
    assert (everywhere["route"], route["route"], route["version"]) == ("*", "default", served.child)
    assert route["difference"] == pytest.approx(0.3, abs=0.02)
    shown = osd("stats", "change", served.child, "--window", "1h")
    assert "all routes" in shown.stdout
    assert "better" in shown.stdout


def test_the_token_that_was_learned_comes_first(osd, served):
    rows = json.loads(osd("stats", "tokens", "--json", "--sort", "recall").stdout)
    assert (rows[0]["token"], rows[0]["recall_before"], rows[0]["recall_after"]) == (3, rows[0]["recall_before"], 1.0)
    assert rows[0]["token_text"], "the shipped pair's tokenizer knows it"
    assert osd("stats", "tokens", "--split", "1h", "--before", "v").exit_code == 2


def test_runs_say_why_they_began(osd, served):
    (run, *_) = json.loads(osd("stats", "runs", "--json").stdout)
    assert run["why"] in ("interval", "age") and run["began"] in osd("stats", "runs").stdout


def test_rejections_come_in_three_kinds(osd, served):
    found = json.loads(osd("stats", "rejections", "--json").stdout)
    assert list(found) == ["position", "route", "token"]
    assert found["position"][0]["share"] == 1.0
    assert {"drafted", "drafted_text", "wanted", "wanted_text", "share"} <= found["token"][0].keys()
    assert osd("stats", "rejections").stdout.count("share") == 3


def test_what_is_saved_and_what_that_assumes(osd, served, target):
    found = json.loads(osd("stats", "gain", "--target", target, "--json").stdout)
    (row,) = found["drafts"]
    assert found["target"] == {"parameters": 1000, "bytes": 2000}
    assert row["net_gain_seconds"] == pytest.approx(row["saved_seconds"] - row["training_seconds"])
    assert row["bytes_without"] == 2000 * row["emitted"]
    assert found["assumption"].startswith("Assumed: without a draft every token takes")
    assert found["assumption"][:40] in osd("stats", "gain", "--target", target).stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_an_empty_store_has_no_answer_and_no_picture(osd, command, target, tmp_path: Path):
    if command in ("change", "tokens"):
        done = osd("stats", command)
        assert (done.exit_code, done.stdout) == (3, "")
        return
    done = osd("stats", command, *arguments(command, target), "--picture", tmp_path / "it.png")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "nothing to draw" in done.stderr
    assert not (tmp_path / "it.png").exists()


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["positions", "--by", "tenant"], "'tenant'"),
        (["acceptance", "--json", "--csv"], "--csv"),
        (["acceptance", "--picture", "it.txt"], ".svg"),
        (["acceptance", "--picture", "nowhere/it.png"], "nowhere"),
        (["change", "--confidence", "2"], "confidence"),
        (["change", "--window", "soon"], "length of time"),
        (["tokens", "--sort", "beauty"], "'beauty'"),
        (["tokens", "--tokenizer", "."], "tokenizer.json"),
        (["rejections", "--by", "colour"], "'colour'"),
        (["rejections", "--csv"], "--by"),
        (["gain", "--target", "."], ".safetensors"),
    ],
)
def test_bad_input_is_named(osd, served, options, names):
    done = osd("stats", *options)
    assert done.exit_code == 2
    assert names in done.stderr


def test_the_help_names_every_group_of_places():
    assert sorted(PLACE_GROUPS) == sorted(GROUPS)


def test_a_picture_of_one_hour_shows_that_hour_and_not_years():
    from osd.cli.stats_picture import over_time

    rows = [{"hour": 1_800_000_000, "route": "a", "alpha": 0.5, "emitted": 5}]
    low, high = over_time(rows, "hour", ["route"]).axes[0].get_xlim()
    assert (high - low) * 24 == pytest.approx(2)


def test_totals_of_a_lossy_mode_are_named_and_stand_apart(osd, filled):
    assert "lossily" not in osd("stats", "acceptance").stderr
    filled.store.outcomes.add([replace(outcome(99, filled.root), controller="fixed (lossy typical)")], "test")
    told = osd("stats", "acceptance")
    assert "accepted lossily (serve.lossy = typical)" in told.stderr
    rows = json.loads(osd("stats", "acceptance", "--by", "controller", "--json").stdout)
    assert {row["controller"] for row in rows} >= {"fixed (lossy typical)"}
