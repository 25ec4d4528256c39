"""What experiments make of what benches measured, and a draft of which acceptance is given."""

from __future__ import annotations

import copy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.distil.arms import arms_of
from benchmarks.distil.bench import DistilCell
from benchmarks.papers.bench import chosen
from benchmarks.papers.entry import PaperExperiment, PapersBench, PaperSizes
from benchmarks.papers.experiments import (
    distilled,
    given_acceptance,
    heads,
    routes,
    shares,
    streams,
    subjects,
    trees,
    updates,
)
from benchmarks.papers.experiments.given_acceptance import GivenAcceptance, known_answers
from benchmarks.papers.experiments.shares import ReadText
from benchmarks.papers.experiments.timing import TimedAnswer
from benchmarks.routes.result import ArmResult, RoutedRequest
from benchmarks.trees.methods import units_of
from osd.bench.harness.prompts import texts_by_set
from osd.bench.harness.watch import Watch
from osd.demo.runner.measure import FinishedRequest
from osd.demo.runner.source import demo_segments
from tests.benchmarks.papers.test_run import recorded
from tests.support.models import prompts, random_pair
from tests.support.settings import settings_of

SIZES = PaperSizes(12, 20, 2)


@pytest.fixture
def papers_bench(tmp_path: Path) -> PapersBench:
    return PapersBench(settings_of(serve__max_length=128), Watch(), tmp_path, "target", "draft")


def require_figures(experiment: PaperExperiment, bench: PapersBench) -> dict[str, Any]:
    """Run it; the claims of every entry that it is for find their figures."""
    found = experiment.run(bench, SIZES)
    mine = [job.entry for job in chosen((), ()) if job.entry.experiment is experiment]
    assert mine and {claim.figure for entry in mine for claim in entry.claims} <= found.figures.keys()
    return dict(found.figures)


@pytest.mark.parametrize(("alpha", "accepted"), [(1.0, True), (0.0, False)])
def test_a_given_acceptance_is_what_is_accepted_and_the_text_is_the_targets(
    papers_bench: PapersBench, alpha: float, accepted: bool
) -> None:
    pair, asked = random_pair("llama", noise=0.2), prompts(3, seed=4, longest=8)
    texts = known_answers(pair, papers_bench, asked, 20)
    for prompt in asked:
        done = GivenAcceptance(pair, papers_bench, texts, 20, alpha, 4).decode(prompt)
        assert list(done.tokens) == texts[prompt]
        assert (done.rejected == 0) is accepted and (done.accepted > 0) is accepted


def test_a_step_changes_a_copy_of_the_draft() -> None:
    pair = random_pair("llama", noise=0.2)
    before = copy.deepcopy(pair.draft.module.state_dict())
    updates.draft_update(pair, 12)()
    assert all(torch.equal(weight, before[name]) for name, weight in pair.draft.module.state_dict().items())


def finished(index: int, segment: str, online: float, frozen: float, offline: float) -> FinishedRequest:
    return FinishedRequest(
        index, segment, str(index), "v", 8, 20, 20 * online, 20 * frozen, 9, 20, 10, 5, 0.1, float(index), 20 * offline
    )


def read(name: str, place: float, online: float, shares: float) -> ReadText:
    return ReadText(name, place, 20, 20 * online, dict.fromkeys((0.1, 0.3, 0.7, 1.0), 20 * shares))


def test_online_figures_are_of_each_sets_end(papers_bench: PapersBench) -> None:
    chance = np.random.default_rng(0)
    rise = [
        finished(i, name, 0.2 + 0.5 * min(1, i / 20) + chance.normal(0, 0.02), 0.2, 0.75 + chance.normal(0, 0.02))
        for name in ("sql", "arithmetic", "python")
        for i in range(60)
    ]
    texts = [read(name, *rates) for name in ("sql", "python") for rates in ((0.0, 0.3, 0.4), (0.9, 0.7, 0.4))]
    papers_bench.kept |= {"online": rise, "shares": texts}
    figures = require_figures(shares.SHARES_OF_DATA, papers_bench)
    assert figures["online_minus_frozen"].value == pytest.approx(0.5, abs=0.02)
    assert figures["online_vs_offline"].value == pytest.approx(0.7 / 0.75, abs=0.02)
    assert figures["late_minus_early"].value > 0.3 and 25 <= figures["requests_to_recover"].value <= 60


def arm(name: str, order: list[str], alphas: dict[str, float], forgotten: float | None = None) -> ArmResult:
    chance = np.random.default_rng(1)
    seen = [
        RoutedRequest(d, d, name, "v", 20, 20 * alphas[d] + chance.normal(0, 0.3), 6.0, 0.1, number)
        for number, d in enumerate(order)
    ]
    return ArmResult(name, seen, forgotten=forgotten)


def test_routes_are_compared_by_domain_and_by_language(papers_bench: PapersBench) -> None:
    order = ["sql", "arithmetic", "finnish"] * 30
    one = {"sql": 0.6, "arithmetic": 0.5, "finnish": 0.5}
    papers_bench.kept["routes-mixed-12x20-s0"] = {
        "single": arm("single", order, one),
        "routed": arm("routed", order, {"sql": 0.7, "arithmetic": 0.65, "finnish": 0.7}),
        "by_language": arm("by_language", order, one | {"finnish": 0.65}),
    }
    figures = require_figures(routes.ROUTED, papers_bench)
    assert figures["least_gain_of_learning"].value == pytest.approx(0.35, abs=0.02)
    assert figures["gain_of_routes"].value == pytest.approx(0.15, abs=0.02)
    assert figures["least_gain_of_routes"].value == pytest.approx(0.1, abs=0.02)
    assert figures["least_gain_of_learning_by_language"].value == pytest.approx(0.25, abs=0.02)
    assert figures["least_gain_of_language_routes"].value == pytest.approx(0.0, abs=0.02)


def test_prompts_of_one_language_say_nothing_of_languages(
    papers_bench: PapersBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    domains = ("sql", "arithmetic")
    monkeypatch.setattr(routes, "drawn", lambda _bench, _sizes, requests, seed: demo_segments(requests, seed, domains))
    papers_bench.kept["routes-mixed-12x20-s0"] = {
        name: arm(name, list(domains) * 30, {"sql": 0.6, "arithmetic": 0.5}) for name in ("single", "routed")
    }
    found = routes.ROUTED.run(papers_bench, SIZES)
    assert list(found.tables) == ["Acceptance by domain, last third"]
    assert not any("language" in name for name in found.figures)


def test_shifts_have_errors_over_seeds(papers_bench: PapersBench) -> None:
    abrupt, linear = ["sql"] * 40 + ["arithmetic"] * 40, ["sql", "arithmetic"] * 40
    for seed in range(2):
        rates = {"sql": 0.7, "arithmetic": 0.3}
        for order, domains in (("abrupt", abrupt), ("linear", linear)):
            papers_bench.kept[f"routes-{order}-12x20-s{seed}"] = {"single": arm("single", domains, rates)}
    figures = require_figures(streams.SHIFTS, papers_bench)
    assert figures["abrupt_dip"].value == pytest.approx(0.4, abs=0.02)
    assert figures["abrupt_minus_gradual_dip"].value == pytest.approx(0.4, abs=0.03)


def test_a_mix_of_data_is_told_half_by_half(papers_bench: PapersBench) -> None:
    mixed = ["sql", "arithmetic"] * 30
    for seed in range(2):
        early = arm("single", mixed, {"sql": 0.7, "arithmetic": 0.3})
        early.seen[:20] = arm("single", mixed[:20], {"sql": 0.4, "arithmetic": 0.3}).seen
        late = arm("single", mixed, {"sql": 0.6, "arithmetic": 0.5})
        papers_bench.kept[f"routes-apart-12x20-s{seed}"] = {"single": ArmResult("single", early.seen + late.seen)}
    figures = require_figures(streams.DATA_MIX, papers_bench)
    assert figures["forgotten"].value == pytest.approx(0.1, abs=0.02) and figures["forgotten"].count == 20
    assert figures["first_rises"].value == pytest.approx(0.3, abs=0.02)
    assert figures["second_rises"].value == pytest.approx(0.2, abs=0.02)


def unit_line(unit: Any) -> dict[str, Any]:
    """A unit in which every method brings two tokens a pass, and the tree twice as many."""
    each = {name: (4.0 if name.startswith("trigram_mcts") else 2.0) for name in unit.methods}
    return {
        "unit": asdict(unit),
        "methods": {n: {"lengths": [x, x + 0.1], "rates": [10 * x, 10 * x + 1]} for n, x in each.items()},
    }


def test_trees_are_compared_prompt_by_prompt(papers_bench: PapersBench) -> None:
    papers_bench.kept["trees"] = [unit_line(unit) for unit in units_of(["sql", "chat"], sensitivity=True)]
    figures = require_figures(trees.METHODS, papers_bench)
    assert figures["tree_vs_greedy"].value == pytest.approx(4.05 / 2.05)
    assert figures["tri_vs_bi_gram"].value == 1 and figures["speed_up"].value > 1.9
    figures = require_figures(trees.ROBUSTNESS, papers_bench)
    assert figures["adaptive_vs_frozen"].value > 1.9 and figures["hot_vs_greedy"].value == 1


class Heads:
    """Rounds with a head that knows which tokens are accepted."""

    trained_on = "easy"

    def texts(self, shape: tuple[float, int]) -> tuple[Any, ...]:
        return tuple(_with_head(text) for text in recorded().traces)


def _with_head(text: Any) -> Any:
    shifted = np.ones_like(text.acceptance)
    shifted[:, 1:] = text.acceptance[:, :-1]
    return replace(text, head=0.02 + 0.96 * shifted)


def test_a_head_that_knows_beats_every_length(papers_bench: PapersBench) -> None:
    papers_bench.kept["heads"] = Heads()
    figures = require_figures(heads.AGAINST_LENGTHS, papers_bench)
    assert figures["specdecpp_vs_best_k"].value > 1.05 and figures["out_of_distribution"].value > 0.95
    figures = require_figures(heads.SHAPES_OF_HEADS, papers_bench)
    assert figures["papers_shape_vs_best"].value == 1 and figures["threshold_6_minus_1"].value == 0


def test_other_prompts_are_not_those_that_are_measured(papers_bench: PapersBench) -> None:
    measured = texts_by_set((), 8, seed=0)
    others = subjects.other_texts(papers_bench, 6, 4)
    assert others.keys() == measured.keys() and all(len(some) == 6 for some in others.values())
    assert not any(set(measured[name]) & set(others[name]) for name in others)


def timed(rate: float, accepted: int = 50) -> TimedAnswer:
    return TimedAnswer((0,) * 20, 20 / rate, accepted, 10, 15)


def test_given_acceptance_is_told_beside_eq_1() -> None:
    rates = {0.0: [100.0, 110.0, 90.0]} | {a: [100 * a * 2, 110 * a * 2, 90 * a * 2] for a in given_acceptance.ALPHAS}
    seen = {a: [timed(rate) for rate in some] for a, some in rates.items()}
    figures = given_acceptance._told(seen, 0.1).figures
    assert figures["speed_up_0.9"].value == pytest.approx(1.8) and figures["speed_up_0.9"].error == pytest.approx(0)
    assert figures["speed_at_0.9_vs_0.5"].value == pytest.approx(1.8) and "least_of_eq_1" in figures
    assert "least_of_eq_1" not in given_acceptance._told(seen, None).figures


def test_drafts_of_table_1_are_compared_on_the_same_texts(papers_bench: PapersBench) -> None:
    rates = {"Original": 0.3, "FT": 0.6, "TF": 0.7, "SF": 0.5, "MixF": 0.65}
    cells = [
        DistilCell(name, temperature, arm.name, arm.loss, [20 * rates[arm.name] + i for i in range(5)], [20] * 5)
        for name in ("sql", "chat") for temperature in (0.0, 1.0) for arm in arms_of(None, None)
    ]  # fmt: skip
    papers_bench.kept["distil"] = cells
    figures = require_figures(distilled.TABLE, papers_bench)
    assert figures["tf_minus_original"].value == pytest.approx(0.4) and figures["tf_minus_sf_sampled"].value > 0.19
    assert figures["tf_minus_jsd"].value == 0
