"""Running a bench as `python -m benchmarks` does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from tests.osd.conftest import compiled as compiled
from tests.osd.conftest import settings as settings


@dataclass(frozen=True)
class BenchOutcome:
    """What a bench printed, and its exit status."""

    exit_code: int
    stdout: str
    stderr: str


Bench = Callable[..., BenchOutcome]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Bench:
    """``bench("rounds", "--count", 1)`` in this process, in an empty working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OSD_STORAGE__DIRECTORY", str(tmp_path / "data"))
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: object) -> BenchOutcome:
        status = main([str(each) for each in arguments])
        return BenchOutcome(status, *capsys.readouterr())

    return run
