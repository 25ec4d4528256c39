"""`osd bench serve`, `soak` and `servers` as a person calls them: real servers with the pair that ships with osd."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.__main__ import main as author_bench
from benchmarks.servers import Other, other_server
from storage.errors import StoreError

pytestmark = pytest.mark.slow
PATIENCE = 120.0


def stopped(
    bench: list[str], folder: Path, far_enough: Callable[[str], bool], after: float = 0.0
) -> tuple[int, str, str]:
    """A bench that is told to end, some seconds after it is far enough, by what it said on its error stream: its exit
    code, and what it said on both."""
    errors, variables = folder / "err", {**os.environ, "OMP_NUM_THREADS": "1"}
    with errors.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", *bench],
            stdout=subprocess.PIPE, stderr=file, text=True, env=variables, cwd=folder,
        )  # fmt: skip
    try:
        end = time.monotonic() + PATIENCE
        while not far_enough(errors.read_text()):
            assert process.poll() is None and time.monotonic() < end, errors.read_text()
            time.sleep(0.05)
        time.sleep(after)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    return process.returncode, said, errors.read_text()


@pytest.mark.long
def test_every_server_is_loaded_and_the_line_is_whole(osd, tmp_path, monkeypatch):
    monkeypatch.setattr("osd.bench.serve.bench.WARM_SECONDS", 0.3)
    trace = tmp_path / "calls.jsonl"
    entry = {"context_tokens": 20, "generated_tokens": 5}
    trace.write_text("".join(json.dumps({"t_s": i / 2, **entry}) + "\n" for i in range(400)))
    small = ["--concurrency", "1,2", "--seconds", 1.5, "--turns", 1, "--swaps", 3, "--max-tokens", 24, "--json"]
    done = osd("bench", "serve", *small, "--trace", trace)
    assert done.exit_code == 0, done.stderr
    whole = json.loads(done.stdout.splitlines()[-1])
    line, settings = whole["figures"], whole["settings"]
    assert line["by_concurrency"].keys() == {"1", "2"} and line["failed"] == 0 and line["errors"] == []
    for level in line["by_concurrency"].values():
        assert min(level["off"], level["fixed"], level["goodput"]) > 0 and level["failed"] == 0
        assert level["goodput_over_best"] == pytest.approx(level["goodput"] / max(level["off"], level["fixed"]))
        assert level["goodput_over_best_error"] == 0  # one turn
        assert level["ttft_ms_p50"] > 0 and 0 < level["tpot_ms_p50"] <= level["tpot_ms_p99"]
    assert line["compared_at"] == 2 and line["swaps"]["published"] == 3
    served = line["by_concurrency"]["2"]["goodput"]
    assert line["server_over_offline"] == pytest.approx(served / line["offline_tokens_per_s"])
    assert (settings["turns"], settings["max_tokens"]) == (1, 24)
    played = line["traces"]["calls"]
    assert all(played[arm]["requests"] > 0 and played[arm]["failed"] == 0 for arm in ("off", "fixed", "goodput"))


@pytest.mark.long
def test_a_run_that_was_stopped_goes_on_in_its_folder(osd, tmp_path):
    """Ctrl-C in the second turn: the line tells of the first, which is not measured again."""
    run = ["--concurrency", "1,2", "--seconds", "6", "--turns", "1", "--swaps", "2", "--max-tokens", "12", "--json"]
    run += ["--out", str(tmp_path / "run")]
    kept = tmp_path / "run" / "turns.jsonl"
    code, said, errors = stopped(
        ["osd.cli.main", "bench", "serve", *run], tmp_path, lambda _: kept.exists() and kept.read_text() != ""
    )
    assert code == 130, errors
    assert "goes on from there" in errors
    whole = json.loads(said.splitlines()[-1])
    line = whole["figures"]
    assert whole["interrupted"] is True and line["by_concurrency"]["1"]["goodput"] > 0
    assert line["by_concurrency"]["2"]["goodput"] == 0 and line["goodput_over_best_min"] > 0
    (first,) = kept.read_text().splitlines()
    done = osd("bench", "serve", *run)
    assert done.exit_code == 0, done.stderr
    again = json.loads(done.stdout.splitlines()[-1])["figures"]
    assert kept.read_text().splitlines()[0] == first and len(kept.read_text().splitlines()) == 2
    assert again["by_concurrency"]["1"]["goodput"] == pytest.approx(line["by_concurrency"]["1"]["goodput"])
    assert again["by_concurrency"]["2"]["goodput"] > 0 and again["swaps"]["published"] == 2
    refused = osd("bench", "serve", *run, "--max-tokens", 13)
    assert refused.exit_code != 0 and "max_tokens is 12 there and 13 now" in refused.stderr


@pytest.mark.long
def test_a_soak_ends_politely_when_it_is_told_to(tmp_path):
    soak = ["benchmarks", "soak", "--minutes", "30", "--every", "0.2", "--measuring", "1", "--max-tokens", "6"]
    soak += ["--json", "--out", str(tmp_path / "out")]
    code, said, errors = stopped(soak, tmp_path, lambda errors: "for 30 minutes" in errors, after=3)
    assert code == 130, errors
    whole = json.loads(said.splitlines()[-1])
    line = whole["figures"]
    assert whole["interrupted"] is True and line["requests"] > 0 and line["failed"] == 0
    assert line["processes"].keys() == {"server", "worker"} and line["published"] >= 0
    assert min(*line["processes"]["server"]["threads"], *line["processes"]["server"]["files"]) > 1
    assert Path(whole["files"]["curves"]).stat().st_size > 5_000


def test_a_server_that_does_not_start_is_named_with_what_it_said(tmp_path: Path) -> None:
    broken = Other("broken", [sys.executable, "-c", "raise ValueError('no such device')"], {})
    said = "broken did not start: ValueError: no such device"
    with pytest.raises(StoreError, match=said), other_server(broken, tmp_path / "log"):
        pytest.fail("it listens")


@pytest.mark.long
def test_other_servers_are_asked_the_same(capsys):
    small = ["--concurrency", "1,2", "--seconds", "1", "--max-tokens", "6", "--json"]
    assert author_bench(["servers", *small]) == 0
    line = json.loads(capsys.readouterr().out.splitlines()[-1])["figures"]
    names = {"osd", "osd off", "transformers", "transformers batching", "transformers look-up"}
    assert line["servers"].keys() | line["not_running"].keys() == names and {"osd", "osd off"} <= line["servers"].keys()
    for levels in line["servers"].values():
        assert all(level["failed"] == 0 and level["tokens_per_s"] > 0 for level in levels.values())
