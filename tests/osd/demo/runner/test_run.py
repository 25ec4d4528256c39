"""A small run of the whole circle with the shipped pair and a real worker: its numbers agree with its database."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from osd.bench import online
from osd.bench.plans import OnlinePlan
from osd.demo import DRAFT, TARGET
from osd.demo.runner.results import RunResults, segment_facts
from osd.demo.runner.run import last_line
from osd.demo.runner.source import Segment, demo_segments
from storage.records import RunState
from storage.settings import load_settings
from storage.store import Store, open_store
from tests.support.launch import Process, start_quickly

pytestmark = pytest.mark.slow

REQUESTS, TOKENS, INTERVAL = 21, 32, 5
QUICK = {
    "learn": {"interval_requests": INTERVAL, "replay_requests": 8, "learning_rate": 3e-3},
    "gate": {"min_requests": 2, "confidence": 0.6},  # a few requests prove little
    "storage": {"holdout": 0.0},
}


def small_run(out: Path) -> tuple[RunResults, str]:
    """Two segments in lockstep with the upper bound; the results and what people saw."""
    seen = io.StringIO()
    sql, finnish = demo_segments(REQUESTS, domains=("sql", "finnish"))
    too_long = Segment("finnish", (*finnish.prompts, "liian pitkä " * 2000))
    plan = OnlinePlan(target=str(TARGET), draft=str(DRAFT), max_tokens=TOKENS, batch=2, keep=True, drafter="causal")
    console = Console(file=seen, width=120)
    results = online.serve_segments(
        plan, load_settings(**QUICK), [sql, too_long], out, console=console, check_every=7
    )  # fmt: skip
    return results, seen.getvalue()


def test_a_small_run_of_the_whole_circle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start_quickly("osd.demo.runner.process", monkeypatch)
    out = tmp_path / "run"
    results, seen = small_run(out)
    with open_store(load_settings(out / "data" / "osd.toml")) as store:
        the_database_holds_what_was_counted(results, store)
    each_batch_was_served_with_the_version_trained_before_it(results)
    the_draft_learned_and_the_bound_is_there(results)
    a_request_that_cannot_be_served_is_counted_and_named(results)
    texts_are_the_targets_and_speed_is_over_the_same_requests(results)
    everything_is_left_in_the_folder(results, out, seen)
    last_lines_have_the_names_that_are_promised(results)


@pytest.mark.long
def test_sampled_traffic_is_learned_from_and_told_by_what_would_be_accepted(tmp_path: Path) -> None:
    (sql,) = demo_segments(30, domains=("sql",))
    plan = OnlinePlan(
        target=str(TARGET), draft=str(DRAFT), max_tokens=TOKENS, batch=2, drafter="causal", temperature=0.8, top_p=0.95
    )
    settings = load_settings(
        **QUICK, gamma={"rule": "fixed", "initial": 4}
    )  # a rule that rests leaves nothing to count
    results = online.serve_segments(plan, settings, [sql], tmp_path / "run", check_every=7)
    facts, told = segment_facts(results.served), results.facts
    assert facts["alpha_last"] > facts["alpha_frozen"] + 0.02 and facts["alpha_offline"] > facts["alpha_frozen"] + 0.02
    assert abs(facts["alpha_last"] - facts["alpha_counted"]) < 0.15
    assert told["published"] > 0 and told["temperature"] == 0.8 and told["lossless_checked"] == 0


def the_database_holds_what_was_counted(results: RunResults, store: Store) -> None:
    for row in store.outcomes.acceptance(by=["route"]):
        served = results.of(row.by["route"])
        assert row.requests == len(served) == REQUESTS
        assert row.rounds == sum(s.rounds for s in served)
        assert (row.drafted, row.accepted) == (sum(s.drafted for s in served), sum(s.accepted for s in served))
        assert row.rejections == sum(s.rejections for s in served)
        assert row.emitted == sum(s.emitted for s in served)
    assert sum(row.requests for row in store.samples.stats()) == 2 * REQUESTS
    runs = store.runs.list("default", limit=1000)
    states = [run.state for run in runs]
    assert results.facts["published"] == states.count(RunState.PUBLISHED) > 0
    assert results.facts["rejected"] == states.count(RunState.REJECTED)
    assert len(results.swaps) == results.facts["published"]  # in lockstep none is passed over


def each_batch_was_served_with_the_version_trained_before_it(results: RunResults) -> None:
    for swap in results.swaps:
        assert {s.version for s in results.served[swap.index : swap.index + 1]} <= {swap.version}
    assert [s.version for s in results.served[:INTERVAL]] == [results.served[0].version] * INTERVAL


def the_draft_learned_and_the_bound_is_there(results: RunResults) -> None:
    sql = segment_facts(results.of("sql"))
    assert sql["alpha_last"] > sql["alpha_frozen"] + 0.02
    assert sql["alpha_offline"] > sql["alpha_frozen"] + 0.05
    assert 0 <= sql["alpha_counted"] <= 1
    assert all(s.version.startswith("default-000000-") and s.online_hits == s.frozen_hits for s in results.served[:5])


def a_request_that_cannot_be_served_is_counted_and_named(results: RunResults) -> None:
    assert results.facts["failed"] == 1
    assert "finnish" in results.notes[0] and "prompt has" in results.notes[0]


def texts_are_the_targets_and_speed_is_over_the_same_requests(results: RunResults) -> None:
    facts = results.facts
    assert facts["lossless_checked"] == 2 * REQUESTS // 7 and facts["lossless_failed"] == 0
    assert min(facts[name] for name in ("speedup_vs_target", "swap_pause_ms_max", "round_ms_median")) > 0


def everything_is_left_in_the_folder(results: RunResults, out: Path, seen: str) -> None:
    summary = json.loads((out / "summary.json").read_text())
    assert summary["segments"]["sql"] == segment_facts(results.of("sql"))
    assert summary["requests"] == 2 * REQUESTS
    page = (out / "report.html").read_text()
    assert "<svg" in page and 'href="http' not in page and "src=" not in page  # nothing is fetched from elsewhere
    assert results.versions[-1]["id"] in page
    assert (out / "acceptance.png").read_bytes().startswith(b"\x89PNG")
    assert f"{2 * REQUESTS} requests, 1 failed" in seen


def last_lines_have_the_names_that_are_promised(results: RunResults) -> None:
    line = online.result_of(results, Path("out")).line()["figures"]
    assert list(line) == ["segments", "published", "failed"]
    named = ["name", "alpha_online_last", "alpha_frozen", "alpha_offline", "recovered_after"]
    assert [list(segment) for segment in line["segments"]] == [named, named]
    other = last_line(results)
    assert list(other)[:4] == ["requests", "failed", "published", "rejected"] and "round_ms_median" in other
    assert list(other["domains"]["sql"]) == ["alpha_frozen", "alpha_first", "alpha_last"]


def mentioning(text: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if text in " ".join(process.info["cmdline"] or []):
            found.append(process)
    return found


@pytest.mark.long
def test_ctrl_c_ends_everything_and_says_what_was_done(tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [
        sys.executable,
        "-m",
        "osd.cli.main",
        "demo",
        "--small",
        "--requests",
        "300",
        "--out",
        str(out),
        "--json",
    ]
    process = Process(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:  # the first line comes with the first request
        if "of 1200 requests" in line:
            break
    deadline = time.monotonic() + 60
    while len(mentioning(str(out))) < 2 and time.monotonic() < deadline:  # the worker, and its child
        time.sleep(0.1)
    time.sleep(2)
    os.killpg(process.pid, signal.SIGINT)
    said, errors = process.communicate(timeout=90)
    assert process.returncode == 130
    assert "nothing is left running" in errors
    line = json.loads(said.splitlines()[-1])
    assert 0 < line["requests"] < 1200
    assert json.loads((out / "summary.json").read_text())["interrupted"] is True
    assert not mentioning(str(out))
    assert not (out / "data").exists()
