"""Every table and figure of the papers is in the catalogue, and what is wrong there is named by file and entry."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from pydantic import ValidationError

from benchmarks.__main__ import main
from benchmarks.papers import bench
from benchmarks.papers.bench import PapersPlan
from benchmarks.papers.catalogue import Paper, PaperEntry, all_papers, load_papers
from benchmarks.papers.results import EntryJob, all_jobs
from osd.bench.harness.report import BenchResult
from storage.errors import BadBenchFile

ROOT = Path(__file__).resolve().parents[3]
TEXTS = ROOT.parent / "shared" / "papers"
FILES = {"osd": "online-speculative-decoding", "on_the_fly": "on-the-fly-adaptation"}
"""Where a paper's text is not called as the paper is here."""
SHOWN = {"osd": (9, 11), "on_the_fly": (13, 7), "specdecpp": (4, 5), "gammatune": (2, 2), "adaptix": (2, 5)}
"""How many tables and figures each paper has."""
NAMED = re.compile(r"\b(Tab(?:le|el)|Figure)\s+(\d+)")
JOBS = list(all_jobs())
BY_NAME = pytest.mark.parametrize("paper", all_papers(), ids=lambda paper: paper.name)


def ids(name: str) -> set[str]:
    tables, figures = SHOWN[name]
    return {f"Table {i + 1}" for i in range(tables)} | {f"Figure {i + 1}" for i in range(figures)}


@BY_NAME
def test_every_table_and_figure_is_there(paper: Paper) -> None:
    assert ids(paper.name) - {entry.id for entry in paper.entries} == set()


@pytest.mark.skipif(not TEXTS.exists(), reason="the papers' texts are not beside this checkout")
@BY_NAME
def test_the_list_is_that_of_the_papers_text(paper: Paper) -> None:
    text = (TEXTS / f"{FILES.get(paper.name, paper.name)}.md").read_text(encoding="utf-8")
    named = {f"{kind.replace('Tabel', 'Table')} {number}" for kind, number in NAMED.findall(text)}
    assert named == ids(paper.name)


def test_nothing_was_lost_on_the_way_into_files() -> None:
    run = [job.entry for job in JOBS if job.entry.run]
    assert (len(run), len(JOBS) - len(run), sum(len(entry.claims) for entry in run)) == (59, 13, 181)


def test_folders_of_entries_are_apart() -> None:
    assert len({job.path(Path("out")) for job in JOBS}) == len(JOBS)


def test_the_command_for_an_entry_leads_to_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[EntryJob]] = []

    def run(plan: PapersPlan, _settings: object, _watch: object) -> BenchResult:
        assert plan.full
        asked.append(bench.chosen(plan.paper, plan.table))
        return BenchResult("papers", {}, {})

    monkeypatch.setattr(bench, "bench_papers", run)
    for job in JOBS:
        words = shlex.split(job.paper.command(job.entry))
        assert words[:3] == ["python", "-m", "benchmarks"] and main(words[3:]) == 0
    assert asked == [[job] for job in JOBS]


@pytest.mark.parametrize("job", [job for job in JOBS if job.entry.run], ids=str)
def test_what_is_run_has_every_field_in_both_sizes(job: EntryJob) -> None:
    assert job.entry.run
    small, full = job.entry.run.plan(False), job.entry.run.plan(True)
    assert type(small) is type(full) and small.minutes <= full.minutes


def test_figures_are_judged_by_names_that_are_words() -> None:
    assert all(re.fullmatch(r"[a-z0-9_.]+", claim.figure) for job in JOBS for claim in job.entry.claims)


def test_an_entry_says_what_becomes_of_it() -> None:
    claims = ({"text": "x", "figure": "y", "at_least": 1},)
    for wrong in ({}, {"planned": "a", "not_reproduced": "b"}, {"planned": "a", "claims": claims}):
        with pytest.raises(ValidationError, match="say what is run"):
            PaperEntry.model_validate({"id": "Table 1", "title": "title", "says": "numbers"} | wrong)


ENTRY = '[[entries]]\nid = "Table 1"\ntitle = "t"\nsays = "s"\nnot_reproduced = """\n{why}\nindeed"""\n'
HEAD = 'title = "t"\nauthors = "a"\nplace = 1\n[words]\nwhy = "for a reason"\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (HEAD + ENTRY * 2, "the paper: all: Value error, Table 1 twice"),
        (HEAD + ENTRY + "claim = []", "Table 1: claim: Extra inputs"),
        (HEAD + ENTRY + 'run = "papers, Table 2"', "Table 1: run: there is no entry 'papers, Table 2' that is run"),
        (HEAD + ENTRY + 'claims = [{ text = "x", figure = "y" }]', "has no bound, so nothing could refute it"),
        (HEAD + "[entries", "Expected ']'"),
    ],
)
def test_what_is_wrong_is_named_by_file_and_entry(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "paper.toml").write_text(text, encoding="utf-8")
    with pytest.raises(BadBenchFile, match=rf"paper\.toml: .*{re.escape(says)}"):
        load_papers(tmp_path)


def test_a_text_may_be_broken_into_lines_and_has_the_files_words(tmp_path: Path) -> None:
    (tmp_path / "paper.toml").write_text(HEAD + ENTRY, encoding="utf-8")
    (paper,) = load_papers(tmp_path)
    assert paper.name == "paper" and paper.entries[0].not_reproduced == "for a reason indeed"
