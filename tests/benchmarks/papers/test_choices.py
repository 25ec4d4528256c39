"""Depths of EAGLE's trees, a draft for each prompt, memory and categories: what experiments make of what was found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.eagle.arms import ANALYTIC, ARMS, FIXED, DepthCell, jobs_of
from benchmarks.eagle.bench import COSTS
from benchmarks.eagle.told import DepthText, TreeRound
from benchmarks.gamma.costs import find_costs
from benchmarks.papers.entry import PapersBench, PaperSizes
from benchmarks.papers.experiments import choosing, corpora, eagle, gamma_rules, two_drafts
from benchmarks.papers.experiments.two_drafts import LARGE_DRAFT, SMALL_DRAFT, Drafts, dearer, replayed_draft
from benchmarks.trees.methods import units_of
from osd.bench.harness.watch import Watch
from osd.demo import TARGET
from storage.errors import BadInput
from tests.benchmarks.papers.test_experiments import require_figures, unit_line
from tests.benchmarks.papers.test_run import recorded
from tests.support.settings import settings_of

TEXTS, LENGTH = 8, 24


@pytest.fixture
def papers_bench(tmp_path: Path) -> PapersBench:
    return PapersBench(settings_of(serve__max_length=128), Watch(), tmp_path, str(TARGET), "draft")


def decoded(depth: int, nodes: int) -> list[DepthText]:
    """Texts of which a tree brings two tokens beside the target's own, however deep it is beyond that."""
    accepted = min(depth, 2)
    round_ = TreeRound(depth, nodes, accepted, accepted + 1)
    return [DepthText("sql", (1,) * LENGTH, [round_] * (LENGTH // (accepted + 1))) for _ in range(TEXTS)]


def test_a_depth_that_fits_is_faster_than_eagle_2s(papers_bench: PapersBench) -> None:
    depths = {arm.name: arm.depth for arm in ARMS} | {ANALYTIC.name: 2}
    nodes = {name: 60 * bool(depth) for name, depth in depths.items()}
    papers_bench.kept["eagle"] = [
        DepthCell(job, decoded(depths[job.arm], nodes[job.arm])) for job in jobs_of(COSTS[:1])
    ]
    found, table = require_figures(eagle.DEPTHS, papers_bench), find_costs(COSTS[0])
    deep, fits = (table.draft_ms(1, depth) + table.verify_ms(1, 61) for depth in (6, 2))
    assert found["analytic_vs_depth_6"].value == pytest.approx(deep / fits) and found["analytic_vs_depth_6"].error == 0
    assert found["analytic_vs_best_depth"].value == 1 and found["goodput_vs_depth_6"].value == 1
    assert found["analytic_vs_alone"].value == pytest.approx(3 * table.verify_ms(1, 1) / fits)
    detail = require_figures(eagle.IN_DETAIL, papers_bench)
    assert detail["speculation"].value == pytest.approx(3) and detail["verification"].value == pytest.approx(1)
    assert detail["acceptance_gap"].value == pytest.approx(1 - 2 / 6) and FIXED[2].depth == 2


def drafts(right: bool) -> Drafts:
    """A small draft that the recorded texts are of, and a larger one that is right at every position, or never."""
    traces, table = recorded().traces, find_costs(gamma_rules.ON_TWO_A100)
    larger = tuple(replace(text, acceptance=np.full_like(text.acceptance, right)) for text in traces)
    return {SMALL_DRAFT: replayed_draft(traces, table), LARGE_DRAFT: replayed_draft(larger, dearer(table, 13 / 7))}


def test_the_larger_draft_is_chosen_where_it_pays(papers_bench: PapersBench) -> None:
    for right in (True, False):
        papers_bench.kept["two-drafts"] = both = drafts(right)
        for expect in ("pace", "theorem", "gain"):
            assert choosing.takes_larger(both, 8, expect).mean() == pytest.approx(float(right), abs=0.2)
        figures = require_figures(choosing.SELECTION, papers_bench)
        assert (figures["chosen_vs_small"].value > 1.2) is right and figures["chosen_vs_one_draft"].value > 0.9
        assert require_figures(choosing.R, papers_bench)["r_farthest_from_16"].value == pytest.approx(1, abs=0.1)
    assert not choosing.measured(both)[0] and 0.5 < choosing.measured(both).mean() < 0.7


def test_theorem_3_as_eq_3_gives_it_names_the_faster_draft(papers_bench: PapersBench) -> None:
    papers_bench.kept["two-drafts"] = drafts(True)
    found = choosing.larger(papers_bench, PaperSizes())
    assert found.figures["as_derived_right"].value == 1
    (row,) = next(iter(found.tables.values()))
    assert (row["condition holds as printed"] > 0) is ("as_printed_sufficient" in found.figures)
    assert row["texts"] >= row["ρ higher with it"] >= row["condition holds as printed"]


def test_a_dearer_draft_takes_as_many_times_as_long() -> None:
    table = find_costs(gamma_rules.ON_TWO_A100)
    more = dearer(table, two_drafts.LARGER)
    assert more.draft_ms(1, 3) == pytest.approx(table.draft_ms(1, 3) * 13 / 7)
    assert more.verify_ms(1, 5) == table.verify_ms(1, 5)


def test_chat_is_known_by_its_name_and_asked_for_where_there_is_none(papers_bench: PapersBench) -> None:
    papers_bench.kept["rounds-0"] = recorded()
    with pytest.raises(BadInput, match="None of the prompts are chat"):
        gamma_rules.CHAT.run(papers_bench, PaperSizes())
    chats = tuple(replace(t, data_set="oasst_en") if t.data_set == "easy" else t for t in recorded().traces)
    papers_bench.kept["rounds-0"] = replace(recorded(), traces=chats)
    assert require_figures(gamma_rules.CHAT, papers_bench)["vs_alone"].value > 1.3


def test_memory_is_that_of_the_same_corpora(papers_bench: PapersBench) -> None:
    found = corpora.memory(papers_bench, PaperSizes(12))
    assert found.figures["matrix_vs_rest"].count == 4 and found.figures["matrix_vs_rest"].value > 0.05
    rows = found.tables["Memory"]
    assert len(rows) == 4 * len(corpora.SHARES)
    assert all(8 <= row["REST-like, bytes a token"] < 9 for row in rows), "8 bytes a token, and a mark behind each text"


def test_categories_are_those_of_the_lines_or_the_data_sets(papers_bench: PapersBench, tmp_path: Path) -> None:
    papers_bench.kept["trees"] = [unit_line(unit) for unit in units_of(["sql", "chat"], sensitivity=True)]
    figures = require_figures(corpora.CATEGORIES, papers_bench)
    assert figures["least_speed_up"].value > 1.9 and figures["most_vs_least"].value == 1
    named = tmp_path / "named.jsonl"
    named.write_text('{"prompt": "a", "category": "math"}\n{"prompt": "b", "domain": "chat"}\n{"prompt": "c"}\n')
    papers_bench.prompts = [str(named)]
    assert corpora.by_category(papers_bench) == {"math": ["a"], "chat": ["b"]}
