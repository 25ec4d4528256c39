"""Entries run to their verdicts, once; the page says what came of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.gamma.costs import find_costs
from benchmarks.gamma.rounds import Recording
from benchmarks.gamma.simulate import Simulator
from benchmarks.papers.bench import EntryJob, bench_papers, chosen, kept, minutes_of, place, told
from benchmarks.papers.entry import PaperExperiment, PaperFindings, PapersBench, PaperSizes
from benchmarks.papers.experiments import gamma_rules, theorems
from benchmarks.papers.experiments.replays import DEPTH, WARM_TEXTS, ReplayedTexts, fixed, papers_analytic, replayed
from osd.bench.harness.watch import Watch
from storage.errors import BadSetting
from storage.settings import Settings
from tests.support.settings import settings_of
from tests.support.traces import agreeing_trace

SETS = ("easy", "hard")
LENGTH = 40


def recorded(texts: int = 8) -> Recording:
    """Greedy texts of two domains: the draft agrees with 85 % of one and 5 % of the other."""
    chance = np.random.default_rng(0)
    traces = [
        agreeing_trace(list(chance.random(LENGTH) < rate), DEPTH, name)
        for name, rate in zip(SETS, (0.85, 0.05), strict=True) for _ in range(WARM_TEXTS + texts)
    ]  # fmt: skip
    return Recording("target", "aa", "draft", "bb", DEPTH, LENGTH, 0, tuple(traces))


@pytest.fixture
def papers_bench(tmp_path: Path) -> PapersBench:
    """Experiments over these texts, without a model."""
    return PapersBench(Settings(), Watch(), tmp_path, "target", "draft", kept={"rounds-0": recorded()})


def texts_of(bench: PapersBench) -> ReplayedTexts:
    return replayed(bench, PaperSizes(), gamma_rules.ON_TWO_A100)


def test_a_texts_milliseconds_are_what_its_passes_cost(papers_bench: PapersBench) -> None:
    texts = texts_of(papers_bench)
    alone, three = texts.under(fixed(papers_bench, 0)), texts.under(fixed(papers_bench, 3))
    table = texts.table
    assert alone.ms == pytest.approx(LENGTH * table.verify_ms(1, 1)) and alone.tokens.tolist() == [LENGTH] * 16
    seen = Simulator(fixed(papers_bench, 3), table).run(list(texts.texts))
    whole = seen.draft_ms + seen.verify_ms  # also with what the draft reads of a prompt: a token or two here
    assert three.ms.sum() == pytest.approx(whole, rel=0.002) and three.rounds.sum() == seen.rounds
    assert three.of("easy").faster_than(alone.of("easy")).value > 1.3
    assert three.of("hard").faster_than(alone.of("hard")).value < 0.8


def test_skipping_validation_is_an_upper_bound(papers_bench: PapersBench) -> None:
    texts = texts_of(papers_bench)
    best = texts.under(fixed(papers_bench, 4), upper_bound=True)
    assert (best.rounds == LENGTH / 5).all() and (best.ms <= texts.under(fixed(papers_bench, 4)).ms).all()


def test_the_analytic_rule_is_judged_against_windows_and_the_target_alone(papers_bench: PapersBench) -> None:
    found = gamma_rules.on_the_fly(papers_bench, PaperSizes(), costs=gamma_rules.ON_TWO_A100)
    assert found.figures["vs_windows_5_to_8"].value > 1.1 > 1 > found.figures["least_of_window_5_vs_alone"].value
    assert 0.7 < found.figures["least_vs_alone"].value <= 1.01
    (rows,) = found.tables.values()
    assert [row["data set"] for row in rows] == list(SETS)


@pytest.mark.parametrize("experiment", ["METHODS_OPT", "HISTORIES", "GAMMATUNE", "REGIMES", "COST_MODEL"])
def test_experiments_give_the_figures_of_their_claims(papers_bench: PapersBench, experiment: str) -> None:
    job = next(j for j in chosen((), ()) if j.entry.experiment is getattr(gamma_rules, experiment))
    found = getattr(gamma_rules, experiment).run(papers_bench, PaperSizes())
    assert {claim.figure for claim in job.entry.claims} <= found.figures.keys()


def test_the_oracle_discards_nothing_and_no_length_is_faster(papers_bench: PapersBench) -> None:
    found = gamma_rules.oracle_bound(papers_bench, PaperSizes()).figures
    assert found["discarded"].value == 0 and found["oracle_vs_best_k"].value > 1
    assert found["oracle_vs_alone"].value > 1


def test_estimates_of_known_acceptance_are_near_it() -> None:
    texts = tuple(theorems.made_text(0.8, seed, 200) for seed in range(60))
    made = ReplayedTexts((), texts, find_costs(gamma_rules.ON_TWO_A100))
    for make in (papers_analytic(), papers_analytic(most=5)):
        found = theorems._estimates(made, make)
        # 60 estimates of some 30 judged tokens: a mean within 0.05 of β but once in some hundred thousand
        assert found.mean() == pytest.approx(0.8, abs=0.05) and 0.02 < found.std() < 0.2


def test_a_run_ends_in_verdicts_is_resumed_and_leaves_a_page(tmp_path: Path) -> None:
    settings = settings_of(storage__directory=tmp_path / "data")
    first = bench_papers(settings, Watch(), tmp_path / "out", papers=["osd"], ids=["Table 5", "A.4", "Figure 1"])
    assert first.figures["claims"] == {"confirmed": 5, "refuted": 1, "open": 0}, "5.5 GFLOP/s are 11 TFLOP/s"
    assert (first.figures["entries"], first.figures["run"], first.figures["not_reproduced"]) == (3, 2, 1)
    (job,) = chosen(["osd"], ["table 5"])
    written = place(tmp_path / "out", job)
    before = written.stat().st_mtime_ns
    more = bench_papers(settings, Watch(), tmp_path / "out", papers=["osd"], ids=["A.3"])
    assert more.figures["claims"]["confirmed"] == 1 and written.stat().st_mtime_ns == before
    page = (tmp_path / "out" / "index.html").read_text("utf-8")
    for text in ("1,320", "Table 5", "confirmed", "lmsys_gflops ≥ 5", "not run yet", "A diagram."):
        assert text in page, text
    results = json.loads((tmp_path / "out" / "results.json").read_text("utf-8"))["papers"]
    assert results["osd"]["A.3"]["state"] == "1 confirmed" and results["adaptix"]["Figure 1"]["not_reproduced"]
    said = (tmp_path / "out" / "results.md").read_text("utf-8")
    assert "| Both ratios follow" in said and "docs/ngram.md is ours" in said


def test_what_entries_share_fails_once_and_is_tried_again_by_the_next_run(
    papers_bench: PapersBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def shared() -> int:
        asked.append("shared")
        raise BadSetting(source="a run", key="that", reason="entries share")

    def entry(_bench: PapersBench, _sizes: PaperSizes) -> PaperFindings:
        papers_bench.once("shared", shared)
        return PaperFindings({})

    jobs = [job._replace(entry=replace(job.entry, experiment=PaperExperiment(entry))) for job in chosen((), ())[:2]]
    monkeypatch.setattr("benchmarks.papers.bench.chosen", lambda _papers, _ids: jobs)
    settings, out = settings_of(storage__directory=papers_bench.out / "data"), papers_bench.out / "out"
    assert len(bench_papers(settings, Watch(), out).figures["failed"]) == 2 and asked == ["shared"]  # type: ignore[arg-type]
    papers_bench.kept["shared"] = 1
    assert bench_papers(settings, Watch(), out).figures["failed"] == {}


def test_another_plan_wants_another_folder_and_names_must_be_known(tmp_path: Path) -> None:
    settings = settings_of(storage__directory=tmp_path / "data")
    bench_papers(settings, Watch(), tmp_path / "out", papers=["osd"], ids=["A.3"])
    with pytest.raises(BadSetting, match="another run"):
        bench_papers(settings, Watch(), tmp_path / "out", papers=["osd"], ids=["A.3"], seed=1)
    for papers, ids, says in ((["nips"], [], "none of osd"), (["osd"], ["Table 99"], "there is no 'table 99'")):
        with pytest.raises(BadSetting, match=says):
            chosen(papers, ids)


def test_a_run_that_entries_share_is_estimated_once() -> None:
    first, *others = minutes_of(chosen(["adaptix"], ["Table 1", "Figure 3", "Figure 4"]), full=True).values()
    assert first > 1 > max(others)


def test_other_runs_stand_beside_and_what_turned_is_told(tmp_path: Path) -> None:
    settings, ids = settings_of(storage__directory=tmp_path / "data"), ["Table 5", "A.3"]
    for name, seed in (("one", 0), ("other", 1)):
        bench_papers(settings, Watch(), tmp_path / name, papers=["osd"], ids=ids, seed=seed)
    (job,) = chosen(["osd"], ["A.3"])
    written = place(tmp_path / "other", job)
    found = json.loads(written.read_text("utf-8"))
    found["findings"]["figures"]["off_by"]["value"] = 0.5
    written.write_text(json.dumps(found), "utf-8")
    bench_papers(settings, Watch(), tmp_path / "one", papers=["osd"], ids=ids, beside=[tmp_path / "other"])
    said = (tmp_path / "one" / "results.md").read_text("utf-8")
    assert "| other | seed 1 | 3 | 2 | osd, A.3: The numbers follow from Table 1, to 1 %. |" in said
    assert "| *other* | | 0.500 | refuted |" in said
    assert "seed 1" in (tmp_path / "one" / "index.html").read_text("utf-8")
    claims = json.loads((tmp_path / "one" / "results.json").read_text("utf-8"))["papers"]["osd"]["A.3"]["claims"]
    assert claims[0]["verdict"] == "confirmed" and claims[0]["beside"]["other"]["verdict"] == "refuted"
    with pytest.raises(BadSetting, match="one name"):
        bench_papers(settings, Watch(), tmp_path / "one", ids=ids, beside=[tmp_path / "other", tmp_path / "other"])
    with pytest.raises(BadSetting, match=r"--beside.*holds no run"):
        bench_papers(settings, Watch(), tmp_path / "one", papers=["osd"], ids=ids, beside=[tmp_path / "none"])


def test_a_page_names_models_and_prompts_by_names_that_any_machine_can_read(tmp_path: Path) -> None:
    settings, prompts = settings_of(storage__directory=tmp_path / "data"), tmp_path / "sums.jsonl.gz"
    result = bench_papers(
        settings, Watch(), tmp_path / "out", papers=["osd"], ids=["A.3"], prompts=[str(prompts)],
    )  # fmt: skip
    assert result.settings["target"] == "osd's own target" and result.settings["prompts"] == ["sums"]
    assert not [path for path in (tmp_path / "out").rglob("*.*") if str(tmp_path) in path.read_text("utf-8")]
    (tmp_path / "mine" / "draft").mkdir(parents=True)
    assert told(str(tmp_path / "mine" / "draft"), False) == "mine/draft"
    assert told(str(tmp_path / "mine"), False) == "mine" and told("org/name", False) == "org/name"


def test_a_result_that_is_damaged_is_named(tmp_path: Path) -> None:
    (job,) = chosen(["osd"], ["A.3"])
    path = place(tmp_path, EntryJob(*job))
    path.parent.mkdir(parents=True)
    path.write_text("{")
    with pytest.raises(BadSetting, match=r"a-3.json is not a result"):
        kept(tmp_path, job)
