"""What `python -m benchmarks vllm` makes of the answers that it saw; what vLLM does is for `pytest -m vllm`."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.vllm.bench import LearningRun, TokenAnswer, alpha, draw, figures_of
from osd.demo.runner.measure import WINDOW


def test_figures_are_shares_of_what_was_judged(tmp_path: Path) -> None:
    begin = [TokenAnswer((number,), 0, 10) for number in range(WINDOW)]
    learned = LearningRun(
        answers={"sql": [*begin, *(TokenAnswer((7,), 6, 4) for _ in range(WINDOW))], "sums": [TokenAnswer((8,), 1, 3)]},
        swaps=[(1, "v0"), (WINDOW + 4, "v1"), (WINDOW + 9, "v2")], offline=[TokenAnswer((7,), 3, 1)],
        plain={"sql": [*begin, *(TokenAnswer((9,)) for _ in range(WINDOW))]}, seconds=2.0,
    )  # fmt: skip
    found = figures_of(learned, clients=4)
    assert found["sets"]["sql"] == {"requests": 2 * WINDOW, "alpha_first": 0.0, "alpha_last": 0.6, "same_ids": WINDOW}
    assert found["sets"]["sums"]["alpha_last"] == 0.25 and found["sets"]["sums"]["same_ids"] == 0
    assert found["alpha_random"] == 0.0 and found["published"] == 2 and found["alpha_offline"] == 0.75
    assert found["online_over_offline"] == pytest.approx(0.8) and found["tokens_per_s"] == (2 * WINDOW + 1) / 2
    assert draw(learned.answers, [place for place, _ in learned.swaps], found, tmp_path).stat().st_size > 1000


def test_a_run_that_was_stopped_at_once_has_figures_too() -> None:
    found = figures_of(LearningRun(), clients=4)
    assert found["published"] == 0 and found["online_over_offline"] is None and alpha([]) is None
