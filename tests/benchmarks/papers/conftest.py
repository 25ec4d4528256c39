"""Experiments over made-up measurements, without a model: what a run keeps stands in ``PapersBench.kept``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.figures import PaperFigure
from benchmarks.gamma.rounds import Recording
from benchmarks.papers.experiment import PaperExperiment, PapersBench
from benchmarks.papers.experiments.replays import DEPTH, WARM_TEXTS
from benchmarks.papers.experiments.timing import TimedAnswer
from benchmarks.papers.results import all_jobs
from osd.bench.harness.watch import Watch
from osd.demo import DRAFT, TARGET
from tests.support.settings import settings_of
from tests.support.traces import agreeing_trace

LENGTH = 40
Figures = Mapping[str, PaperFigure]


@pytest.fixture
def papers_bench(tmp_path: Path) -> PapersBench:
    return PapersBench(settings_of(serve__max_length=128), Watch(), tmp_path, str(TARGET), str(DRAFT))


@pytest.fixture
def figures_of(papers_bench: PapersBench) -> Callable[..., Figures]:
    """``figures_of("osd, Table 4", medusa=found)``: the figures of that entry's small run over what was kept; the
    claims of every entry of that run find theirs."""

    def run(name: str, **kept: Any) -> Figures:
        plan = plan_of(name)
        papers_bench.kept |= {plan.named(what): value for what, value in kept.items()}
        found = plan.run(papers_bench).figures
        entry = entry_of(name)
        wanted = {claim.figure for job in all_jobs() if job.entry.run == entry.run for claim in job.entry.claims}
        assert wanted <= found.keys()
        return found

    return run


def entry_of(name: str) -> Any:
    return next(job.entry for job in all_jobs() if str(job) == name)


def plan_of(name: str, *, full: bool = False, **changes: Any) -> Any:
    """The experiment of an entry, in its small size unless ``full``."""
    return entry_of(name).run.plan(full).model_copy(update=changes)


def require(figures: Figures, expected: Mapping[str, float], off: float = 1e-6) -> None:
    """Hold figures against what they should be."""
    assert {name: figures[name].value for name in expected} == pytest.approx(dict(expected), abs=off)


def recorded(texts: int = 4) -> Recording:
    """Greedy texts of two domains: the draft agrees with 85 % of one and 5 % of the other."""
    chance = np.random.default_rng(0)
    traces = [
        agreeing_trace(list(chance.random(LENGTH) < rate), DEPTH, name)
        for name, rate in (("easy", 0.85), ("hard", 0.05)) for _ in range(WARM_TEXTS + texts)
    ]  # fmt: skip
    return Recording("target", "aa", "draft", "bb", DEPTH, LENGTH, 0, tuple(traces))


def keep_rounds(bench: PapersBench, plan: PaperExperiment, rounds: Recording) -> None:
    bench.kept[f"{plan.named('rounds-t0')}-s0"] = rounds


def timed(rate: float, rounds: int = 10) -> TimedAnswer:
    """An answer of 20 tokens, of which the first step brought four."""
    return TimedAnswer((0,) * 20, 20 / rate, 5, 5, rounds, 4, 4 / rate)
