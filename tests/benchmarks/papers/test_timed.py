"""Times of single requests; what experiments by the clock, and those with distilled drafts, make of what they
measured."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.distil.bench import DistilPlan, DistilResult, DistilSet
from benchmarks.distil.texts import answers
from benchmarks.eagle.bench import ANALYTIC, ARMS, FIXED, jobs_of
from benchmarks.gamma.costed import CostedRound, CostedText
from benchmarks.gamma.costs import find_costs
from benchmarks.papers.experiment import PapersBench
from benchmarks.papers.experiments import distilled, given_acceptance, medusa, passes, timing
from benchmarks.papers.experiments.medusa import ALONE, DRAFT_OSD, FAMILIAR, MEDUSA, MEDUSA_OSD, NEW, LearnedDrafts
from benchmarks.papers.experiments.timing import TimedEngine, by_turns
from benchmarks.papers.experiments.two_drafts import perplexities
from osd.bench.harness.turns import Cell, Job
from osd.demo import TARGET
from osd.models.features.decoder import FeatureModel
from osd.models.pair import Pair, load_pair
from storage.errors import BadInput
from storage.insights.tokens import JudgedPositions, ranked
from storage.records import TokenKind
from storage.sampling import GREEDY
from storage.settings import Settings
from tests.benchmarks.papers.conftest import Figures, plan_of, require, timed
from tests.support.models import alone, prompts, random_pair

TEXTS, LENGTH = 8, 24


@pytest.fixture
def pair(papers_bench: PapersBench) -> Pair:
    """A pair of random weights, which the bench has, too."""
    papers_bench.pair = random_pair("llama", noise=0.2)
    return papers_bench.pair


@pytest.mark.parametrize(("alpha", "accepted"), [(1.0, True), (0.0, False)])
def test_a_given_acceptance_is_what_is_accepted_and_the_text_is_the_targets(
    papers_bench: PapersBench, pair: Pair, alpha: float, accepted: bool
) -> None:
    asked, plan = prompts(3, seed=4, longest=8), plan_of("osd, Table 2", gamma=4)
    texts = TimedEngine(pair, papers_bench.settings, 20, gamma=0).answers(asked)
    for prompt in asked:
        done = plan.arm(papers_bench, texts, alpha, 20).decode(prompt)
        assert done.tokens == texts[prompt]
        assert (done.rejected == 0) is accepted and (done.accepted > 0) is accepted


def test_a_prompts_perplexity_is_the_targets(pair: Pair) -> None:
    asked = [*prompts(2, seed=4, longest=8), prompts(1, seed=5)[0][:1]]
    for prompt, found in zip(asked, perplexities(pair, asked), strict=True):
        said = pair.target.module(torch.tensor([list(prompt)])).logits[0, :-1].log_softmax(-1)
        surprise = -said.gather(1, torch.tensor([prompt[1:]]).long().T)
        assert found == (pytest.approx(float(surprise.mean().exp()), rel=1e-3) if len(prompt) > 1 else None)


def test_a_step_changes_a_copy_of_the_draft(papers_bench: PapersBench, pair: Pair) -> None:
    before = copy.deepcopy(pair.draft.module.state_dict())
    assert passes.draft_update(papers_bench, prompts(2, seed=4), 8) > 0
    assert all(torch.equal(weight, before[name]) for name, weight in pair.draft.module.state_dict().items())


def test_answers_go_on_past_their_end_where_that_is_asked(papers_bench: PapersBench, pair: Pair) -> None:
    settings, (prompt,) = papers_bench.settings, prompts(1, seed=3)
    text = alone(pair.target.module, prompt, 12)
    ending = Pair(pair.target, pair.draft, None, frozenset(text[3:4]))
    cut = text[: text.index(text[3]) + 1]
    for whole, expected in ((False, cut), (True, text)):
        assert list(TimedEngine(ending, settings, 12, gamma=3, whole=whole).decode(prompt).tokens) == expected
    assert list(TimedEngine(pair, settings, 12, gamma=3).decode(prompt, 5).tokens) == text[:5]


def test_arms_answer_every_prompt_and_time_goes_by(
    papers_bench: PapersBench, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "wait_for_compiled", lambda: None)
    arms = {gamma: TimedEngine(pair, papers_bench.settings, 16, gamma=gamma) for gamma in (0, 4)}
    found = by_turns(papers_bench, arms, prompts(3, seed=5), "both")
    assert [one.tokens for one in found[0]] == [one.tokens for one in found[4]]
    for one in (*found[0], *found[4]):
        assert len(one.tokens) == 16 and 0 < one.first_seconds < one.seconds and 0 < one.first_tokens < 16
        assert one.rate > 0 and one.later_rate > 0
    assert all(one.accepted == 0 for one in found[0]) and sum(one.accepted for one in found[4]) > 0


def test_given_acceptance_is_told_beside_eq_1() -> None:
    plan = plan_of("osd, Table 2")
    seen = {a: [timed(rate * (2 * a or 1)) for rate in (100, 110, 90)] for a in (0.0, *plan.alphas)}
    figures = plan.told(seen, 0.1).figures
    require(figures, {"speed_up_0.9": 1.8, "speed_at_0.9_vs_0.5": 1.8})
    assert figures["speed_up_0.9"].error == pytest.approx(0) and "least_of_eq_1" in figures
    assert "least_of_eq_1" not in plan.told(seen, None).figures


def test_lengths_are_compared_without_the_prompts_time() -> None:
    plan = plan_of("osd, Table 8")
    found = {
        n: {a: [timed(rate * (a * factor or 1)) for rate in (100, 120)] for a in (0.0, *plan.alphas)}
        for n, factor in ((16, 2.0), (64, 3.0))
    }
    gains = {"gain_of_length": 0.7, "least_gain_of_length": 0.5, "gain_of_alpha_less_that_of_length": 0.8 - 0.7}
    require(plan.told(found).figures, gains)


def test_prompts_of_one_length_are_put_together() -> None:
    asked = [tuple(range(5)), tuple(range(10, 17))]
    made = given_acceptance.prefixes(asked, 11)
    assert len(made) == 2 and {len(prompt) for prompt in made} == {11} and made[0] == (*asked[0], *asked[1][:6])
    with pytest.raises(BadInput, match="too few"):
        given_acceptance.prefixes([(1,), (1,)], 4)


def test_drafts_of_table_1_are_compared_on_the_same_texts(papers_bench: PapersBench) -> None:
    rates = {"Original": 0.3, "FT": 0.6, "TF": 0.7, "SF": 0.5, "MixF": 0.65}
    plan = plan_of("osd, Table 1", full=True)
    papers_bench.kept[plan.named("distil")] = [
        Cell(
            Job(DistilSet(name, temperature), arm),
            DistilResult([20 * rates[arm.name] + i for i in range(5)], [20] * 5),
        )
        for name in ("sql", "chat") for temperature in (0.0, 1.0) for arm in DistilPlan().arms
    ]  # fmt: skip
    figures = plan.run(papers_bench).figures
    assert figures["tf_minus_original"].value == pytest.approx(0.4) and figures["tf_minus_sf_sampled"].value > 0.19
    assert figures["tf_minus_jsd"].value == 0


def test_distilled_drafts_are_compared_with_what_they_were() -> None:
    plan = plan_of("osd, Table 3")
    seen = {
        name: {"alone": [timed(100)] * 2, "before": [timed(90)] * 2, "after": [timed(up)] * 2}
        for name, up in (("sql", 180), ("chat", 120))
    }
    figures = plan.told(seen).figures
    require(figures, {"least_speed_up": 1.2, "speed_up": 1.5, "after_vs_before": 1.5 / 0.9})
    assert figures["speed_up"].count == 4


def test_a_draft_is_judged_at_every_position_of_an_answer(papers_bench: PapersBench, pair: Pair) -> None:
    texts = answers(pair, papers_bench.settings, prompts(3, seed=6, longest=6), GREEDY, 8)
    itself, other = (distilled.judged_by_reading(model, texts) for model in (pair.target, pair.draft))
    assert len(itself) == 24 and (itself.kinds == TokenKind.ACCEPTED).all()
    for i, text in enumerate(texts):
        said = pair.draft.module(torch.tensor([text.tokens.tolist()])).logits[0, text.prompt_len - 1 : -1].argmax(-1)
        assert other.drafted[8 * i : 8 * i + 8].tolist() == said.tolist()


def positions(drafted: list[int], emitted: list[int]) -> JudgedPositions:
    right = np.array(drafted) == np.array(emitted)
    kinds = np.where(right, TokenKind.ACCEPTED, TokenKind.REJECTED).astype(np.int64)
    return JudgedPositions(1, kinds, np.array(drafted), np.array(emitted))


def test_tokens_that_gain_most_are_named_by_data_set() -> None:
    emitted = [1, 1, 1, 2, 2, 3]
    found = {
        "sql": ranked(positions([9] * 6, emitted), positions([1, 1, 1, 2, 9, 9], emitted)),
        "chat": ranked(positions([9] * 3, [5, 5, 6]), positions([5, 5, 6], [5, 5, 6])),
    }
    names = {name: {row.token: f"t{row.token}" for row in rows} for name, rows in found.items()}
    told = distilled.tokens_told(found, [0.8, 0.9], names)
    require(told.figures, {"recall_gain": 0.7, "least_recall_gain": 0.5, "precision_gain": 0.8})
    require(told.figures, {"least_precision_gain": 2 / 3, "own_tokens_among_best": 1, "share_of_tokens": 0.85})
    (rows,) = told.tables.values()
    assert rows[0]["tokens"].startswith("t1, t2")


def test_medusa_is_told_by_traffic() -> None:
    seen = {
        kind: {
            ALONE: [timed(100, 20)] * 3, MEDUSA: [timed(100 * bare, 15)] * 3, MEDUSA_OSD: [timed(200, 10)] * 3,
            DRAFT_OSD: [timed(150, 12)] * 3,
        }
        for kind, bare in ((NEW, 1.25), (FAMILIAR, 2.0))
    }  # fmt: skip
    told = medusa.told(seen, {MEDUSA: 7, DRAFT_OSD: 5})
    require(told.figures, {"osd_vs_medusa_new": 1.6, "rounds_saved_new": 1 / 3})
    require(told.figures, {"draft_vs_medusa_osd_familiar": 0.75, "medusa_vs_draft_familiar": 2 / 1.5})
    (rows,) = told.tables.values()
    assert [row["weights"] for row in rows] == [7, 7, 5] and rows[1]["tokens a round, new"] == 2


@pytest.mark.long
def test_heads_serve_and_learn_and_are_not_taught_twice(papers_bench: PapersBench) -> None:
    papers_bench.settings, plan = Settings(), plan_of("osd, Table 4", texts=8, tokens=8)
    drafts = LearnedDrafts(papers_bench, plan)
    assert len(drafts.served[NEW]) == 9 and not set(drafts.served[NEW]) & set(drafts.tests[NEW])
    taught = drafts.learned(drafts.random_heads(), NEW, "heads", **medusa.HEADS_LEARN)
    before = sorted(path.name for path in drafts.folder.iterdir())
    assert drafts.learned(drafts.random_heads(), NEW, "heads", **medusa.HEADS_LEARN) == taught
    assert sorted(path.name for path in drafts.folder.iterdir()) == before
    assert isinstance(load_pair(TARGET, taught, device="cpu").draft, FeatureModel)


def decoded(depth: int, nodes: int) -> list[CostedText]:
    """Texts of which a tree brings two tokens beside the target's own, however deep it is beyond that."""
    accepted = min(depth, 2)
    round_ = CostedRound(depth, nodes, accepted)
    return [CostedText("sql", (1,) * LENGTH, [round_] * (LENGTH // (accepted + 1))) for _ in range(TEXTS)]


def test_a_depth_that_fits_is_faster_than_eagle_2s(figures_of: Callable[..., Figures]) -> None:
    (costs,) = plan_of("on_the_fly, Table 10").costs
    depths: dict[str, Any] = {arm.name: arm.depth for arm in ARMS} | {ANALYTIC.name: 2}
    cells = [Cell(job, decoded(depths[job.arm], 60 * bool(depths[job.arm]))) for job in jobs_of((costs,))]
    found, table = figures_of("on_the_fly, Table 10", eagle=cells), find_costs(costs)
    deep, fits = (table.draft_ms(1, depth) + table.verify_ms(1, 61) for depth in (6, 2))
    assert found["analytic_vs_depth_6"].value == pytest.approx(deep / fits) and found["analytic_vs_depth_6"].error == 0
    assert found["analytic_vs_best_depth"].value == 1 and found["goodput_vs_depth_6"].value == 1
    assert found["analytic_vs_alone"].value == pytest.approx(3 * table.verify_ms(1, 1) / fits)
    detail = figures_of("on_the_fly, Table 11", eagle=cells)
    assert detail["speculation"].value == pytest.approx(3) and detail["verification"].value == pytest.approx(1)
    assert detail["acceptance_gap"].value == pytest.approx(1 - 2 / 6) and FIXED[2].depth == 2
