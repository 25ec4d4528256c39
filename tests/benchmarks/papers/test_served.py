"""What experiments make of served traffic and of trees: learning, routes, shifts, make-up, categories, memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.papers.experiment import PapersBench
from benchmarks.papers.experiments import served, shares, trees
from benchmarks.papers.experiments.shares import ReadText, matched
from benchmarks.papers.experiments.traffic import LANGUAGE, TOPIC, RoutedPrompt, share_by_stretch
from benchmarks.routes.result import ArmResult, RoutedRequest
from benchmarks.trees.methods import units_of
from benchmarks.trees.result import TreesCell
from osd.bench.harness.turns import Cell
from osd.demo.runner.measure import FinishedRequest
from osd.demo.runner.source import demo_segments
from storage.settings import Settings
from tests.benchmarks.papers.conftest import Figures, plan_of, require

FiguresOf = Callable[..., Figures]


def finished(index: int, segment: str, online: float, frozen: float, offline: float) -> FinishedRequest:
    return FinishedRequest(
        index, segment, str(index), "v", 8, 20, 20 * online, 20 * frozen, 9, 20, 10, 5, 0.1, float(index), 20 * offline
    )


def read(name: str, place: float, online: float, by_share: float) -> ReadText:
    return ReadText(name, place, 20, 20 * online, dict.fromkeys((0.1, 0.3, 0.7, 1.0), 20 * by_share))


def test_online_figures_are_of_each_sets_end(figures_of: FiguresOf) -> None:
    chance = np.random.default_rng(0)
    rise = [
        finished(i, name, 0.2 + 0.5 * min(1, i / 20) + chance.normal(0, 0.02), 0.2, 0.75 + chance.normal(0, 0.02))
        for name in ("sql", "arithmetic", "python")
        for i in range(60)
    ]
    rise = [replace(one, number=number) for number, one in enumerate(rise)]
    texts = [read(name, *rates) for name in ("sql", "python") for rates in ((0.0, 0.3, 0.4), (0.9, 0.7, 0.4))]
    other = [replace(one, online_hits=one.online_hits - 2) for one in rise]
    figures = figures_of("osd, Figure 3", online=rise, shares=texts, online_reservoir=rise, online_as_printed=other)
    require(
        figures, {"minus_online_as_printed": -0.1, "minus_frozen_as_printed": 0.4, "minus_online_reservoir": 0}, 0.02
    )
    require(figures, {"online_minus_frozen": 0.5, "online_vs_offline": 0.7 / 0.75}, 0.02)
    require(figures, {"online_minus_frozen_as_printed": 0.4, "online_minus_frozen_reservoir": 0.5}, 0.02)
    assert figures["requests_to_recover_as_printed"].value >= 25
    assert figures["late_minus_early"].value > 0.3 and 25 <= figures["requests_to_recover"].value <= 60


def test_drafts_of_a_share_are_held_against_the_same_texts() -> None:
    class Text:
        def __init__(self, number: int) -> None:
            self.request_id = f"prompt-{number}"

        def __len__(self) -> int:
            return 20

    mine = [replace(finished(n, "sql", a, 0.2, 0.5), number=n) for n, a in ((2, 0.5), (1, 0.4), (3, 0.9))]
    texts: list[Any] = [Text(0), Text(1)]
    found = matched(mine, texts, {0.1: [6.0, 8.0]})
    assert found == [ReadText("sql", 0.0, 20, 10.0, {0.1: 8.0}), ReadText("sql", 1 / 3, 20, 8.0, {0.1: 6.0})]


def test_begins_and_ends_are_of_the_right_sets() -> None:
    places = ((0.0, 0.2), (0.05, 0.3), (0.5, 0.9), (0.7, 0.6), (0.9, 0.5))
    some = [read(name, place, online, 0.4) for name in ("sql", "chat") for place, online in places]
    figures, rows = shares.shares_told(some)
    require(figures, {"begin_minus_tenth": -0.15, "end_minus_tenth": 0.15, "after_change_minus_30": -0.15})
    assert [figures[name].count for name in ("begin_minus_tenth", "end_minus_tenth", "end_minus_70")] == [2, 4, 2]
    assert [row["texts"] for row in rows] == ["first tenth", "last third"] and "100%" in rows[0]


def arm(name: str, order: list[str], alphas: dict[str, float]) -> ArmResult:
    chance = np.random.default_rng(1)
    seen = [
        RoutedRequest(d, d, name, "v", 20, 20 * alphas[d] + chance.normal(0, 0.3), 6.0, 0.1, number)
        for number, d in enumerate(order)
    ]
    return ArmResult(seen)


def keep_arms(bench: PapersBench, name: str, order: str, *seeds: dict[str, ArmResult]) -> None:
    """Keep what a run of `benchmarks routes` with each seed found."""
    for seed, arms in enumerate(seeds):
        for recipe in served.LEARNING_RECIPES:
            bench.kept[f"{plan_of(name).named(f'routes-{order}')}{recipe.suffix}-s{seed}"] = arms


def test_routes_are_compared_by_domain_and_by_language(papers_bench: PapersBench, figures_of: FiguresOf) -> None:
    order = ["sql", "arithmetic", "finnish"] * 30
    one = {"sql": 0.6, "arithmetic": 0.5, "finnish": 0.5}
    arms = {
        "single": arm("single", order, one),
        "routed": arm("routed", order, {"sql": 0.7, "arithmetic": 0.65, "finnish": 0.7}),
        "by_language": arm("by_language", order, one | {"finnish": 0.65}),
    }
    keep_arms(papers_bench, "osd, Figure 5", "mixed", arms)
    gains = {"least_gain_of_learning": 0.35, "gain_of_routes": 0.15, "least_gain_of_routes": 0.1}
    languages = {"least_gain_of_learning_by_language": 0.25, "least_gain_of_language_routes": 0.0}
    require(figures_of("osd, Figure 5"), gains | languages, 0.02)


def test_languages_are_compared_over_all_of_their_domains_request_by_request() -> None:
    def found(hits: dict[str, int]) -> ArmResult:
        seen = [RoutedRequest(domain, domain, domain, "v", 10, hits[domain] + i % 7, 1 + i % 7, 0.1, 3 * i + place)
                for i in range(30) for place, domain in enumerate(hits)]  # fmt: skip
        return ArmResult(seen)

    arms = {"by_language": found({"a": 6, "b": 6, "c": 3}), "single": found({"a": 5, "b": 3, "c": 3})}
    arms["single"].seen.reverse()
    each = served.compared(arms, "by_language", {"a": "en", "b": "en", "c": "fi"}, "language")
    assert [row["language"] for row in each.rows] == ["en", "fi"] and each.rows[0]["gain of routes"].startswith("0.200")
    assert [gain.value for gain in each.gains] == pytest.approx([0.5, 0.2])
    assert [gain.value for gain in each.over] == pytest.approx([0.2, 0.0]) and each.over[1].error == pytest.approx(0)
    assert [gain.count for gain in each.over] == [20, 10]


def test_prompts_of_one_language_say_nothing_of_languages(
    papers_bench: PapersBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    domains = ("sql", "arithmetic")
    monkeypatch.setattr(served, "drawn", lambda _bench, _plan, requests: demo_segments(requests, 0, domains))
    arms = {name: arm(name, list(domains) * 30, {"sql": 0.6, "arithmetic": 0.5}) for name in ("single", "routed")}
    keep_arms(papers_bench, "osd, Figure 5", "mixed", arms)
    found = plan_of("osd, Figure 5").run(papers_bench)
    assert not any("language" in name for name in [*found.figures, *found.tables])
    assert found.figures["gain_of_routes"].value == found.figures["gain_of_routes_as_printed"].value  # the same arms


def test_shifts_have_errors_over_seeds(papers_bench: PapersBench, figures_of: FiguresOf) -> None:
    rates = {"sql": 0.7, "arithmetic": 0.3}
    for order, domains in (("abrupt", ["sql"] * 40 + ["arithmetic"] * 40), ("linear", ["sql", "arithmetic"] * 40)):
        keep_arms(papers_bench, "osd, Figure 11", order, *[{"single": arm("single", domains, rates)}] * 2)
    figures = figures_of("osd, Figure 11")
    require(figures, {"abrupt_dip": 0.4}, 0.02)
    require(figures, {"abrupt_minus_gradual_dip": 0.4}, 0.03)


def test_a_mix_of_data_is_told_half_by_half(papers_bench: PapersBench, figures_of: FiguresOf) -> None:
    mixed = ["sql", "arithmetic"] * 30
    early = arm("single", mixed, {"sql": 0.7, "arithmetic": 0.3})
    early.seen[:20] = arm("single", mixed[:20], {"sql": 0.4, "arithmetic": 0.3}).seen
    late = arm("single", mixed, {"sql": 0.6, "arithmetic": 0.5})
    keep_arms(papers_bench, "osd, Figure 9", "apart", *[{"single": ArmResult(early.seen + late.seen)}] * 2)
    figures = figures_of("osd, Figure 9")
    require(figures, {"forgotten": 0.1, "first_rises": 0.3, "second_rises": 0.2}, 0.02)
    assert figures["forgotten"].count == 20


def test_the_make_up_of_traffic_is_told_from_routes(figures_of: FiguresOf) -> None:
    some = [RoutedPrompt("en" if i < 60 else "fi", "en" if i < 50 else "fi", i / 100) for i in range(100)]
    assert share_by_stretch(some, "fi")[5] == (1.0, 0.0) and share_by_stretch(some, "en")[0] == (1.0, 1.0)
    right = [one._replace(told=one.true) for one in some]
    figures = figures_of("osd, Figure 2", traffic={LANGUAGE: some, TOPIC: right})
    assert abs(figures["language_share_off"].value) == pytest.approx(0.1)
    require(figures, {"language_off_by_stretch": 0.1, "topic_share_off": 0})
    assert figures["topic_off_by_stretch"].reach == 0


def test_a_served_stream_is_routed_by_language_and_topic(papers_bench: PapersBench) -> None:
    papers_bench.settings, plan = Settings(), plan_of("osd, Figure 2", texts=6, tokens=2, seeds=1)
    found = plan.streams(papers_bench)
    for trait, labels in ((LANGUAGE, {"en", "fi"}), (TOPIC, {"sql", "arithmetic", "python", "finnish"})):
        assert len(found[trait]) == 24 and {one.true for one in found[trait]} == labels
        assert sum(one.told == one.true for one in found[trait]) >= 22


@pytest.fixture
def lines() -> list[TreesCell]:
    """Units in which every method brings two tokens a pass, and the tree twice as many."""
    found = []
    for unit in units_of(["sql", "chat"], sensitivity=True):
        each = {name: (4.0 if name.startswith("trigram_mcts") else 2.0) for name in unit.methods}
        methods = {n: {"lengths": [x, x + 0.1], "rates": [10 * x, 10 * x + 1]} for n, x in each.items()}
        found.append(Cell(unit, methods))
    return found


def test_trees_are_compared_prompt_by_prompt(figures_of: FiguresOf, lines: list[TreesCell]) -> None:
    figures = figures_of("adaptix, Table 1", trees=lines)
    assert figures["tree_vs_greedy"].value == pytest.approx(4.05 / 2.05)
    assert figures["tri_vs_bi_gram"].value == 1 and figures["speed_up"].value > 1.9
    figures = figures_of("adaptix, Figure 4")
    assert figures["adaptive_vs_frozen"].value > 1.9 and figures["hot_vs_greedy"].value == 1


def test_categories_are_those_of_the_lines_or_the_data_sets(
    papers_bench: PapersBench, figures_of: FiguresOf, lines: list[TreesCell], tmp_path: Path
) -> None:
    figures = figures_of("adaptix, Stability", trees=lines)
    assert figures["least_speed_up"].value > 1.9 and figures["most_vs_least"].value == 1
    named = tmp_path / "named.jsonl"
    named.write_text('{"prompt": "a", "category": "math"}\n{"prompt": "b", "domain": "chat"}\n{"prompt": "c"}\n')
    papers_bench.prompts = [str(named)]
    assert trees.by_category(papers_bench) == {"math": ["a"], "chat": ["b"]}


@pytest.mark.long
def test_memory_is_that_of_the_same_corpora(papers_bench: PapersBench) -> None:
    plan = plan_of("adaptix, Memory", texts=12)
    found = plan.run(papers_bench)
    assert found.figures["matrix_vs_rest"].count == 4 and found.figures["matrix_vs_rest"].value > 0.05
    rows = found.tables["Memory"]
    assert len(rows) == 4 * len(plan.shares)
    assert all(8 <= row["REST-like, bytes a token"] < 9 for row in rows), "8 bytes a token, and a mark behind each text"
