"""What experiments make of recorded rounds: γ rules, theorems, acceptance heads, two drafts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.gamma.costs import find_costs
from benchmarks.gamma.rounds import RecordedText, write_recording
from benchmarks.gamma.simulate import Simulator
from benchmarks.papers.bench import PapersPlan, bench_papers
from benchmarks.papers.experiment import PapersBench
from benchmarks.papers.experiments import theorems
from benchmarks.papers.experiments.replays import ReplayedTexts, fixed, papers_analytic, replayed
from benchmarks.papers.experiments.two_drafts import LARGE, SMALL, Drafts, dearer, on_same_texts, replayed_draft
from benchmarks.papers.results import run_of
from osd.bench.harness.watch import Watch
from storage.errors import BadInput
from tests.benchmarks.papers.conftest import LENGTH, Figures, keep_rounds, plan_of, recorded
from tests.support.settings import settings_of

TWO_A100 = "2xa100-specdecpp"
RULES, PROMPTS = "on_the_fly, Table 1", "on_the_fly, Table 2"


@pytest.fixture
def texts(papers_bench: PapersBench) -> ReplayedTexts:
    keep_rounds(papers_bench, plan_of(RULES), recorded())
    return replayed(papers_bench, plan_of(RULES), TWO_A100)


def test_a_texts_milliseconds_are_what_its_passes_cost(papers_bench: PapersBench, texts: ReplayedTexts) -> None:
    alone, three = texts.under(fixed(papers_bench, 0)), texts.under(fixed(papers_bench, 3))
    table = texts.table
    assert alone.ms == pytest.approx(LENGTH * table.verify_ms(1, 1)) and alone.tokens.tolist() == [LENGTH] * 8
    seen = Simulator(fixed(papers_bench, 3), table).run(list(texts.texts))
    whole = seen.draft_ms + seen.verify_ms  # also with what the draft reads of a prompt: a token or two here
    assert three.ms.sum() == pytest.approx(whole, rel=0.002) and three.rounds.sum() == seen.rounds
    assert three.only("easy").faster_than(alone.only("easy")).value > 1.3
    assert three.only("hard").faster_than(alone.only("hard")).value < 0.8


def test_skipping_validation_is_an_upper_bound(papers_bench: PapersBench, texts: ReplayedTexts) -> None:
    best = texts.under(fixed(papers_bench, 4), upper_bound=True)
    assert (best.rounds == LENGTH / 5).all() and (best.ms <= texts.under(fixed(papers_bench, 4)).ms).all()


@pytest.mark.usefixtures("texts")
def test_the_analytic_rule_is_judged_against_windows_and_the_target_alone(papers_bench: PapersBench) -> None:
    found = plan_of(RULES).run(papers_bench)
    assert found.figures["vs_windows_5_to_8"].value > 1.1 > 1 > found.figures["least_of_window_5_vs_alone"].value
    assert 0.7 < found.figures["least_vs_alone"].value <= 1.01
    (rows,) = found.tables.values()
    assert [row["data set"] for row in rows] == ["easy", "hard"]


@pytest.mark.usefixtures("texts")
@pytest.mark.parametrize(
    "name",
    [
        "on_the_fly, Figure 3", "on_the_fly, Table 12", "on_the_fly, Theorem 2", "gammatune, Table 2",
        "gammatune, Figure 2", "gammatune, Equations 1 to 6",
    ],
)  # fmt: skip
def test_experiments_give_the_figures_of_their_claims(figures_of: Callable[..., Figures], name: str) -> None:
    assert all(np.isfinite(figure.value) for figure in figures_of(name).values())


@pytest.mark.usefixtures("texts")
def test_the_oracle_discards_nothing_and_no_length_is_faster(figures_of: Callable[..., Figures]) -> None:
    found = figures_of("specdecpp, Theorem 4.1")
    assert found["discarded"].value == 0 and found["oracle_vs_best_k"].value > 1 and found["oracle_vs_alone"].value > 1


def test_estimates_of_known_acceptance_are_near_it() -> None:
    made = [theorems.made_text(0.8, seed, 200) for seed in range(60)]
    for make in (papers_analytic(), papers_analytic(most=5)):
        found = theorems.estimated(ReplayedTexts((), made, find_costs(TWO_A100)), make)
        # 60 estimates of some 30 judged tokens: a mean within 0.05 of β but once in some hundred thousand
        assert found.mean() == pytest.approx(0.8, abs=0.05) and 0.02 < found.std() < 0.2


def test_chat_is_known_by_its_name_and_asked_for_where_there_is_none(
    papers_bench: PapersBench, figures_of: Callable[..., Figures]
) -> None:
    name = "on_the_fly, Table 8"
    keep_rounds(papers_bench, plan_of(name), recorded())
    with pytest.raises(BadInput, match="None of the prompts are chat"):
        figures_of(name)
    chats = tuple(replace(t, data_set="oasst_en") if t.data_set == "easy" else t for t in recorded().traces)
    keep_rounds(papers_bench, plan_of(name), replace(recorded(), traces=chats))
    assert figures_of(name)["vs_alone"].value > 1.3


class KnowingHeads:
    """Rounds with a head that knows which tokens are accepted."""

    trained_on = "easy"

    def texts(self, shape: tuple[float, int]) -> tuple[Any, ...]:
        return tuple(_with_head(text) for text in recorded().traces)


def _with_head(text: Any) -> Any:
    shifted = np.ones_like(text.acceptance)
    shifted[:, 1:] = text.acceptance[:, :-1]
    return replace(text, head=0.02 + 0.96 * shifted)


def test_a_head_that_knows_beats_every_length(figures_of: Callable[..., Figures]) -> None:
    figures = figures_of("specdecpp, Figure 1", heads=KnowingHeads())
    assert figures["specdecpp_vs_best_k"].value > 1.05 and figures["out_of_distribution"].value > 0.95
    figures = figures_of("specdecpp, Table 3", heads=KnowingHeads())
    assert figures["papers_shape_vs_best"].value == 1 and figures["threshold_6_minus_1"].value == 0
    assert len(plan_of("specdecpp, Table 3", full=True).shapes()) == 20


def drafts(right: bool) -> Drafts:
    """A small draft that the recorded texts are of, and a larger one that is right at every position, or never."""
    traces, table = recorded().traces, find_costs(TWO_A100)
    larger = tuple(replace(text, acceptance=np.full_like(text.acceptance, right)) for text in traces)
    both = {SMALL: replayed_draft(traces, table), LARGE: replayed_draft(larger, dearer(table, 13 / 7))}
    return Drafts(both, [2.0 + number % 2 for number in range(len(traces))])


@pytest.mark.parametrize("right", [True, False])
def test_the_larger_draft_is_chosen_where_it_pays(right: bool, figures_of: Callable[..., Figures]) -> None:
    both = drafts(right)
    for expect in ("pace", "theorem", "gain"):
        assert both.takes_larger(8, expect).mean() == pytest.approx(float(right), abs=0.2)
    figures = figures_of(PROMPTS, **{"two-drafts": both})
    assert (figures["chosen_vs_small"].value > 1.2) is right and figures["chosen_vs_one_draft"].value > 0.9
    assert figures_of("on_the_fly, Table 13")["r_farthest_from_16"].value == pytest.approx(1, abs=0.1)
    assert not both.counts[0] and 0.5 < both.counts.mean() < 0.7


def test_theorem_3_as_eq_3_gives_it_names_the_faster_draft(papers_bench: PapersBench) -> None:
    plan = plan_of("on_the_fly, Theorem 3")
    papers_bench.kept[plan.named("two-drafts")] = drafts(True)
    found = plan.run(papers_bench)
    assert found.figures["as_derived_right"].value == 1
    (row,) = next(iter(found.tables.values()))
    assert (row["condition holds as printed"] > 0) is ("as_printed_sufficient" in found.figures)
    assert row["texts"] >= row["ρ higher with it"] >= row["condition holds as printed"]


def test_a_dearer_draft_takes_as_many_times_as_long() -> None:
    table = find_costs(TWO_A100)
    more = dearer(table, 13 / 7)
    assert more.draft_ms(1, 3) == pytest.approx(table.draft_ms(1, 3) * 13 / 7)
    assert more.verify_ms(1, 5) == table.verify_ms(1, 5)


def shorter(text: RecordedText, temperature: float, depth: int) -> RecordedText:
    """A text with shorter chains, and a head that knows them."""
    names = ("drafted", "confidence", "peak", "acceptance")
    cut = {name: getattr(text, name)[:, :depth] for name in names}
    head = np.concatenate([np.ones_like(cut["acceptance"][:, :1]), cut["acceptance"][:, :-1]], axis=1)
    return replace(text, temperature=temperature, **cut, head=head.clip(0.01, 0.99))


def test_entries_are_run_over_a_recording_that_is_given_and_no_others(tmp_path: Path) -> None:
    path, whole = tmp_path / "pair.parquet", recorded()
    some = tuple(shorter(text, t, 12) for text in whole.traces for t in (0.0, 1.0))
    write_recording(path, replace(whole, target="/somewhere/big", draft="small", depth=12, traces=some))
    settings = settings_of(storage__directory=tmp_path / "data")
    plan = PapersPlan(paper=("specdecpp", "gammatune"), rounds=path, out=tmp_path / "out")
    found = bench_papers(plan, settings, Watch())
    run = run_of(tmp_path / "out")
    assert run.facts["target"] == "big" and run.facts["draft"] == "small" and run.facts["prompts"] == ["easy", "hard"]
    assert found.figures["failed"] == {} and "specdecpp, Table 3" not in run.results
    assert {"specdecpp, Table 1", "specdecpp, Theorem 4.1", "gammatune, Table 2"} <= run.results.keys()
    figures = run.results["specdecpp, Table 1"].findings.figures
    assert figures["specdecpp_vs_best_k"].value > 1, "a head that knows wins"
    assert "out_of_distribution" not in figures and figures["in_distribution"] == figures["specdecpp_vs_best_k"]


def test_a_recording_that_lacks_what_an_entry_needs_is_said(papers_bench: PapersBench) -> None:
    papers_bench.recording = recorded()
    for name, says in (("on_the_fly, Table 9", "no texts at temperature 1"), ("specdecpp, Table 1", "acceptance head")):
        with pytest.raises(BadInput, match=says):
            plan_of(name).run(papers_bench)


def test_two_drafts_recordings_are_replayed_on_the_texts_that_both_have(papers_bench: PapersBench) -> None:
    whole = recorded()
    some = tuple(
        replace(shorter(text, 0.0, 12), prompt=np.array([5, number], np.int32))
        for number, text in enumerate(whole.traces)
    )
    both = on_same_texts(some, some[:1:-1])
    assert [[text.prompt[1] for text in each] for each in both] == [[*range(2, len(some))]] * 2
    with pytest.raises(BadInput, match="no text in common"):
        on_same_texts(some, ())
    papers_bench.recording = replace(whole, depth=12, traces=some)
    papers_bench.larger = replace(papers_bench.recording, traces=some[:1:-1])
    figures = plan_of("on_the_fly, Table 2").run(papers_bench).figures
    assert figures["chosen_vs_small"].value == 1, "who is dearer and no better is never chosen"
