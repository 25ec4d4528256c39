"""The bench of acceptance by set of prompts, on tiny pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from osd.bench.acceptance import _names, bench_acceptance, draw
from osd.bench.harness.watch import Watch
from storage.settings import load_settings
from tests.support.models import model_of, noisy, prompts, random_module, random_pair


@pytest.fixture(scope="module")
def figures() -> dict[str, Any]:
    """The target itself, a near copy and a stranger as drafts, over two sets."""
    pair = random_pair("llama")
    strangers = {"near": model_of(noisy(pair.target.module, 0.05)), "far": model_of(random_module("llama", seed=7))}
    sets = {"one": prompts(4, seed=1), "two": prompts(3, seed=2)}
    settings = load_settings(serve={"max_length": 64, "max_batch": 2})
    return bench_acceptance(pair, {"itself": pair.target} | strangers, sets, settings, 8, Watch())


def test_the_target_agrees_with_itself_and_others_less_the_further_they_are(figures: dict[str, Any]) -> None:
    for kind in ("right", "overlap"):
        shares = figures[kind]["all"]
        assert shares["itself"] == pytest.approx(1.0, abs=1e-5) and shares["itself"] > shares["near"] > shares["far"]


def test_all_is_the_mean_over_the_positions_of_the_sets(figures: dict[str, Any]) -> None:
    counts = figures["positions"]
    assert counts == {"one": 32, "two": 24, "all": 56}
    for kind in ("right", "overlap"):
        one, two, both = (figures[kind][name]["near"] for name in ("one", "two", "all"))
        assert both == pytest.approx((one * 32 + two * 24) / 56)


def test_it_draws_a_line_a_set(figures: dict[str, Any], tmp_path: Path) -> None:
    assert draw(figures, tmp_path).stat().st_size > 1000


def test_drafts_of_one_name_are_told_apart() -> None:
    assert _names(["runs/v1", "runs/v2"]) == ["v1", "v2"]
    assert _names(["one/draft", "other/draft"]) == ["one/draft", "other/draft"]
