"""Recipes of `osd bench online`: ours and the paper's, side by side."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from osd.bench.online import RECIPES, compared, serve_segments
from osd.bench.plans import OnlinePlan
from osd.demo import DRAFT, TARGET
from osd.demo.runner.circle import own_settings
from osd.demo.runner.results import RunResults
from osd.demo.runner.source import demo_segments
from storage.settings import Settings, load_settings
from tests.osd.demo.runner.served import served


def results(hits: int, **facts: Any) -> RunResults:
    told = dict.fromkeys(("target", "draft", "arrival", "max_batch", "max_new_tokens", "temperature", "top_p"))
    told |= {"learn": {"epochs": hits}, "published": 1, "failed": 0, "interrupted": False, **facts}
    return RunResults("t", [served(i, hits) for i in range(60)], [], ["a"], [], [], told)


def test_the_papers_recipe_is_its_algorithm_over_any_settings(tmp_path: Path) -> None:
    given = Settings().changed(learn={"loss": "jsd", "replay_requests": 99}, gate={"min_gain": 0.2})
    own = own_settings(given, tmp_path, **RECIPES["paper"])
    assert own.serve.record == own.learn.positions == "rejected" and own.learn.loss == "jsd"
    assert (own.learn.replay_requests, own.learn.epochs, own.learn.interval_requests) == (0, 1, 8)
    assert (own.gamma.rule, own.gamma.initial) == ("fixed", 5)
    assert own.gate.min_gain == -1 and own.storage.flush_requests == 8
    assert own_settings(given, tmp_path, **RECIPES["osd"]).learn == given.learn


def test_runs_with_several_recipes_stand_side_by_side() -> None:
    both = compared({"osd": results(8), "paper": results(6, interrupted=True)}, Path("out"))
    rows = both.tables["α by segment"]
    assert [(row["recipe"], row["alpha_online_last"]) for row in rows] == [("osd", 0.8), ("paper", 0.6)]
    assert both.figures["recipes"]["paper"]["learn"] == {"epochs": 6} and "learn" not in both.settings
    assert both.files["summary, paper"] == Path("out/paper/summary.json") and both.interrupted
    alone = compared({"paper": results(6)}, Path("out"))
    assert alone.settings["learn"] == {"epochs": 6} and alone.files["summary"] == Path("out/summary.json")


@pytest.mark.slow
@pytest.mark.long
def test_the_papers_recipe_learns_and_serves_whatever_came_of_it(tmp_path: Path) -> None:
    (sql,) = demo_segments(40, domains=("sql",))
    plan = OnlinePlan(
        target=str(TARGET), draft=str(DRAFT), batch=2, max_tokens=32, offline=False, drafter="causal"
    )  # fmt: skip
    found = serve_segments(replace(plan, recipe=("paper",)), load_settings(), [sql], tmp_path / "run")
    assert found.facts["published"] >= 3 and found.facts["rejected"] == 0
    judged = [version["evidence"] for version in found.versions if version["evidence"]]  # a run may still be under way
    assert len(judged) >= 3 and all(evidence["min_gain"] == -1 for evidence in judged)
