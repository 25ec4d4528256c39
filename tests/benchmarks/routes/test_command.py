"""`benchmarks routes` and `benchmarks drafts` as a person calls them, with the pair that ships with osd."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from osd.demo.prompts import prompts
from osd.server.start import SHIPPED


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    made = []
    for domain in ("sql", "arithmetic"):
        path = tmp_path / f"{domain}.jsonl"
        path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in prompts(domain, 96, 0)))
        made.append(path)
    return made


def test_a_run_is_whole_and_goes_on_where_it_stopped(bench, files, tmp_path):
    small = ["--requests", 12, "--max-tokens", 8, "--out", tmp_path / "run", "--json"]
    prompted = [part for path in files for part in ("--prompts", path)]
    done = bench("routes", *prompted, "--arms", "routed_lora", *small)
    assert done.exit_code == 0, done.stderr
    line = json.loads(done.stdout.splitlines()[-1])["figures"]
    assert set(line["domains"]) == {"sql", "arithmetic"} and line["failed"] == line["lossless_failed"] == 0
    assert line["misrouted"] <= 0.25 and line["tokens_per_s"].keys() == {"routed_lora"}
    assert (tmp_path / "run" / "routes.png").stat().st_size > 5_000
    again = bench("routes", *prompted, "--arms", "routed_lora", *small)
    assert (
        again.exit_code == 0 and json.loads(again.stdout.splitlines()[-1])["figures"] == line
    )  # nothing was left to do
    other = bench("routes", *prompted, "--arms", "routed_lora", *small, "--seed", 5)
    assert other.exit_code == 2 and "another run" in other.stderr


def test_too_few_prompts_are_refused_before_anything_starts(bench, tmp_path):
    path = tmp_path / "few.jsonl"
    path.write_text('{"prompt": "one"}\n')
    done = bench("routes", "--prompts", path, "--out", tmp_path / "run")
    assert done.exit_code == 2 and "few has 1 prompts" in done.stderr


def test_drafts_are_compared_with_the_choice_among_them(bench, files, tmp_path):
    shutil.copytree(SHIPPED / "draft", tmp_path / "other")
    drafts = ["--target", SHIPPED / "target", "--draft", SHIPPED / "draft", "--draft", tmp_path / "other"]
    small = ["--requests", 3, "--warm-up", 3, "--max-tokens", 6]
    done = bench("drafts", *drafts, "--prompts", files[0], *small, "--json")
    assert done.exit_code == 0, done.stderr
    line = json.loads(done.stdout.splitlines()[-1])["figures"]
    assert line["all"]["tokens_per_s"].keys() == {"auto", "default", "other"}
    assert line["all"]["alpha"]["default"] == line["all"]["alpha"]["other"]
    assert line["sets"]["sql"]["prompts"] == 3


def test_one_draft_is_no_choice(bench, files):
    done = bench("drafts", "--draft", SHIPPED / "draft", "--prompts", files[0])
    assert done.exit_code == 2 and "twice or more" in done.stderr
