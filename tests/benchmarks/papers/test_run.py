"""Entries run to their verdicts, once; the page says what came of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.papers.bench import PapersPlan, bench_papers, chosen, minutes_of, told
from benchmarks.papers.catalogue import EntryRun
from benchmarks.papers.experiment import PaperExperiment, PaperFindings, PapersBench
from benchmarks.papers.page import main
from benchmarks.papers.results import all_jobs, kept, run_of
from osd.bench.harness.prompts import texts_by_set
from osd.bench.harness.report import BenchResult
from osd.bench.harness.watch import Watch
from storage.errors import BadSetting
from tests.support.settings import settings_of

DOCS = Path(__file__).resolve().parents[3] / "docs"
Run = Callable[..., BenchResult]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """``run("one", ["A.3"], seed=1)``: entries of OSD's paper, into a folder."""
    settings = settings_of(storage__directory=tmp_path / "data")

    def run_papers(out: str, ids: list[str], **plan: Any) -> BenchResult:
        return bench_papers(PapersPlan(paper=("osd",), table=tuple(ids), out=tmp_path / out, **plan), settings, Watch())

    return run_papers


def test_a_run_ends_in_verdicts_is_resumed_and_leaves_a_page(run: Run, tmp_path: Path) -> None:
    first = run("out", ["Table 5", "A.4", "Figure 1"])
    assert first.figures["claims"] == {"confirmed": 5, "refuted": 1, "open": 0}, "5.5 GFLOP/s are 11 TFLOP/s"
    assert (first.figures["entries"], first.figures["run"], first.figures["not_reproduced"]) == (3, 2, 1)
    (job,) = chosen(["osd"], ["table 5"])
    before = job.path(tmp_path / "out").stat().st_mtime_ns
    more = run("out", ["A.3", "Figure 8"])
    assert more.figures["claims"]["confirmed"] == 3 and job.path(tmp_path / "out").stat().st_mtime_ns == before
    said = (tmp_path / "out" / "results.md").read_text("utf-8")
    for text in ("| Both ratios follow", "docs/ngram.md is ours", "not run yet", "A diagram.", "1,320"):
        assert text in said, text
    page = (tmp_path / "out" / "index.html").read_text("utf-8")
    for text in ("<td>1,320</td>", '<td class="confirmed">', "<svg", "lmsys_gflops ≥ 5", "Table 5"):
        assert text in page, text


def test_what_entries_share_fails_once_and_is_tried_again_by_the_next_run(
    papers_bench: PapersBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    class Shared(PaperExperiment):
        def run(self, bench: PapersBench) -> PaperFindings:
            papers_bench.once("shared", fail)
            return PaperFindings({})

    def fail() -> int:
        asked.append("shared")
        raise BadSetting(source="a run", key="that", reason="entries share")

    monkeypatch.setattr(EntryRun, "plan", lambda _run, _full: Shared())
    settings, out = settings_of(storage__directory=papers_bench.out / "data"), papers_bench.out / "out"
    plan = PapersPlan(paper=("osd",), table=("Table 1", "Table 2"), out=out)
    assert len(bench_papers(plan, settings, Watch()).figures["failed"]) == 2 and asked == ["shared"]
    papers_bench.kept["shared"] = 1
    assert bench_papers(plan, settings, Watch()).figures["failed"] == {}


def test_another_plan_wants_another_folder_and_names_must_be_known(run: Run) -> None:
    run("out", ["A.3"])
    with pytest.raises(BadSetting, match="another run"):
        run("out", ["A.3"], seed=1)
    for papers, ids, says in ((["nips"], [], "none of osd"), (["osd"], ["Table 99"], "there is no 'table 99'")):
        with pytest.raises(BadSetting, match=says):
            chosen(papers, ids)


def test_sizes_may_be_asked_for_in_place_of_the_catalogues(run: Run, tmp_path: Path) -> None:
    assert run("out", ["A.3"], texts=7, tokens=5, seeds=2).settings["tokens"] == 5
    (job,) = chosen(["osd"], ["A.3"])
    result = kept(tmp_path / "out", job)
    assert result and result.sizes == "7 texts of each data set, 5 tokens, 2 seeds"
    with pytest.raises(BadSetting, match="another run"):
        run("out", ["A.3"])


def test_a_run_that_entries_share_is_estimated_once() -> None:
    first, *others = minutes_of(chosen(["adaptix"], ["Table 1", "Figure 3", "Figure 4"]), full=True).values()
    assert first > 1 > max(others)


def test_other_runs_stand_beside_and_what_turned_is_told(run: Run, tmp_path: Path) -> None:
    ids = ["Table 5", "A.3"]
    for name, seed in (("one", 0), ("other", 1)):
        run(name, ids, seed=seed)
    (job,) = chosen(["osd"], ["A.3"])
    path = job.path(tmp_path / "other")
    path.write_text(path.read_text("utf-8").replace('"value": 0.00', '"value": 0.50'), "utf-8")
    run("one", ids, beside=[tmp_path / "other"])
    said = (tmp_path / "one" / "results.md").read_text("utf-8")
    assert "| other | seed 1 | 3 | 2 | osd, A.3: The numbers follow from Table 1, to 1 %. |" in said
    assert "| *other* | | 0.50" in said
    with pytest.raises(BadSetting, match="one name"):
        run("one", ids, beside=[tmp_path / "other", tmp_path / "other"])
    with pytest.raises(BadSetting, match=r"--beside.*holds no run"):
        run("one", ids, beside=[tmp_path / "none"])


def test_the_page_of_docs_is_that_of_its_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "papers").mkdir()
    for name in ("plan.json", "entries", "beside"):
        (tmp_path / "papers" / name).symlink_to(DOCS / "papers" / name)
    monkeypatch.setattr("benchmarks.papers.page.draw", lambda _picture: "")
    main(tmp_path / "papers")
    assert (tmp_path / "papers" / "results.md").read_text("utf-8") == (DOCS / "papers/results.md").read_text("utf-8")
    drawn = {path.name for path in (tmp_path / "papers" / "pictures").iterdir()}
    assert drawn == {path.name for path in (DOCS / "papers" / "pictures").iterdir()}
    names = {str(job) for job in all_jobs() if job.entry.run}
    assert run_of(DOCS / "papers").results.keys() == names


def test_a_page_names_models_and_prompts_by_names_that_any_machine_can_read(run: Run, tmp_path: Path) -> None:
    result = run("out", ["A.3"], prompts=[str(tmp_path / "sums.jsonl.gz")])
    assert result.settings["target"] == "osd's own target" and result.settings["prompts"] == ["sums"]
    assert not [path for path in (tmp_path / "out").rglob("*.*") if str(tmp_path) in path.read_text("utf-8")]
    (tmp_path / "mine" / "draft").mkdir(parents=True)
    assert told(str(tmp_path / "mine" / "draft"), False) == "mine/draft"
    assert told(str(tmp_path / "mine"), False) == "mine" and told("org/name", False) == "org/name"


def test_a_result_that_is_damaged_is_named(tmp_path: Path) -> None:
    (job,) = chosen(["osd"], ["A.3"])
    job.path(tmp_path).parent.mkdir(parents=True)
    job.path(tmp_path).write_text("{")
    with pytest.raises(BadSetting, match=r"a-3.json is not a result"):
        kept(tmp_path, job)


def test_other_prompts_are_not_those_that_are_measured(papers_bench: PapersBench) -> None:
    measured, others = texts_by_set((), 8, seed=0), papers_bench.others(6, 4)
    assert others.keys() == measured.keys() and all(len(some) == 6 for some in others.values())
    assert not any(set(measured[name]) & set(others[name]) for name in others)
