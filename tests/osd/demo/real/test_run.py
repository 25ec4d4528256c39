"""The demo on a real model, with the shipped target in its place: page, picture, numbers, and refusals."""

from __future__ import annotations

import io
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from osd.cli.demo import require_small
from osd.demo import TARGET, DemoOptions
from osd.demo.real import run
from osd.demo.real.report import Page, summarise
from osd.demo.real.turns import RealTrace
from storage.errors import BadInput
from storage.settings import load_settings
from tests.osd.demo.real.test_turns import turn
from tests.support.launch import start_quickly


def test_a_page_loads_itself_while_it_runs_and_stays_at_the_end(tmp_path: Path) -> None:
    spoken = [("a", True), ("&", False)]
    trace = RealTrace(60.0, turns=[turn(1, 1.0), turn(50, 2.0)], question="How <many>?", spoken=spoken)
    page = Page(tmp_path)
    page.write(trace)
    live = page.path.read_text()
    assert 'http-equiv="refresh"' in live and "How &lt;many&gt;?" in live and "<mark>a</mark>&amp;" in live
    assert "<svg" in live and "YOUR_MODEL" not in live
    page.write(trace, summarise(trace), run.next_steps(run.LEARNING, "medusa"))
    final = page.path.read_text()
    assert "refresh" not in final and "YOUR_MODEL" in final and "<mark>a</mark>" in final
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_options_of_the_small_pair_are_refused_without_it() -> None:
    with pytest.raises(BadInput, match="--requests is for the small pair"):
        require_small(DemoOptions(requests=7))
    require_small(DemoOptions(requests=7, small=True))
    require_small(DemoOptions(minutes=30, max_tokens=12))


def shipped(monkeypatch: pytest.MonkeyPatch) -> tuple[Path, str]:
    start_quickly("osd.demo.runner.process", monkeypatch)
    monkeypatch.setattr(run, "GATHER_SECONDS", 2.0)
    monkeypatch.setattr(run, "CLOSING_SECONDS", 0.0)
    learn = {**run.LEARNING["learn"], "interval_requests": 16, "draft_vocabulary": 512}
    monkeypatch.setattr(run, "LEARNING", {**run.LEARNING, "learn": learn})
    return TARGET, "the test"


@pytest.mark.long
def test_heads_of_random_weights_learn_and_texts_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen = shipped(monkeypatch), io.StringIO()
    options: Any = DemoOptions(minutes=1, max_tokens=24, keep=True)
    summary = run.run_real(
        load_settings(), options, model, tmp_path / "out", Console(file=seen, width=160), begun=time.perf_counter(),
        port=None,
    )  # fmt: skip
    assert summary["published"] > 0 and summary["lossless_failed"] == 0 < summary["lossless_checked"]
    assert not summary["interrupted"] and summary["answers"] >= 16
    kept = json.loads((tmp_path / "out" / "summary.json").read_text())
    versions = [one["version"] for one in kept["turns"]]
    assert versions[0] != versions[-1]
    assert {"report.html", "gain.png", "summary.json", "data"} <= {p.name for p in (tmp_path / "out").iterdir()}
    assert "gain" in seen.getvalue() and "osd drafts new" in seen.getvalue()


@pytest.mark.long
def test_ctrl_c_reports_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, out = shipped(monkeypatch), tmp_path / "out"

    def interrupt() -> None:
        while not (out / "report.html").exists() or "1 of 1" not in (out / "report.html").read_text():
            time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    options: Any = DemoOptions(minutes=5, max_tokens=24)
    summary = run.run_real(
        load_settings(), options, model, out, Console(file=io.StringIO()), begun=time.perf_counter(), port=None
    )
    assert summary["interrupted"] and summary["lossless_checked"] and not (out / "data").exists()
    assert json.loads((out / "summary.json").read_text())["interrupted"] is True
