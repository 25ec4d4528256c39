"""`benchmarks routes` as a person calls it, with the pair that ships with osd."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from osd.demo.prompts import prompts


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    made = []
    for domain in ("sql", "arithmetic"):
        path = tmp_path / f"{domain}.jsonl"
        path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in prompts(domain, 96, 0)))
        made.append(path)
    return made


@pytest.mark.long
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
