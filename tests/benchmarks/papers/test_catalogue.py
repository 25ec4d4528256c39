"""Every table and figure of the papers is in the catalogue."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from benchmarks.__main__ import main
from benchmarks.papers import bench
from benchmarks.papers.catalogue import PAPERS
from benchmarks.papers.claims import Claim
from benchmarks.papers.entry import Paper, PaperEntry
from benchmarks.papers.reference import DOCS, papers_page

ROOT = Path(__file__).resolve().parents[3]
TEXTS = ROOT.parent / "shared" / "papers"
FILES = {
    "osd": "online-speculative-decoding.md", "on_the_fly": "on-the-fly-adaptation.md", "specdecpp": "specdecpp.md",
    "gammatune": "gammatune.md", "adaptix": "adaptix.md",
}  # fmt: skip
SHOWN = {"osd": (9, 11), "on_the_fly": (13, 7), "specdecpp": (4, 5), "gammatune": (2, 2), "adaptix": (2, 5)}
"""How many tables and figures each paper has."""
NAMED = re.compile(r"\b(Tab(?:le|el)|Figure)\s+(\d+)")
ENTRIES = [(paper, entry) for paper in PAPERS for entry in paper.entries]


def ids(name: str) -> set[str]:
    tables, figures = SHOWN[name]
    return {f"Table {i + 1}" for i in range(tables)} | {f"Figure {i + 1}" for i in range(figures)}


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.name)
def test_every_table_and_figure_is_there(paper: Paper) -> None:
    assert ids(paper.name) - {entry.id for entry in paper.entries} == set()


@pytest.mark.skipif(not TEXTS.exists(), reason="the papers' texts are not beside this checkout")
@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.name)
def test_the_list_is_that_of_the_papers_text(paper: Paper) -> None:
    text = (TEXTS / FILES[paper.name]).read_text(encoding="utf-8")
    named = {f"{kind.replace('Tabel', 'Table')} {number}" for kind, number in NAMED.findall(text)}
    assert named == ids(paper.name)


def test_folders_of_entries_are_apart() -> None:
    places = [bench.place(Path("out"), bench.EntryJob(*each)) for each in ENTRIES]
    assert len(set(places)) == len(places)


@pytest.mark.parametrize(("paper", "entry"), ENTRIES, ids=lambda each: getattr(each, "id", None) or each.name)
def test_the_command_for_an_entry_leads_to_it_alone(
    paper: Paper, entry: PaperEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[bench.EntryJob]] = []

    def run(*_: object, papers: list[str], ids: list[str], **__: object) -> None:
        asked.append(bench.chosen(papers, ids))
        raise typer.Exit

    monkeypatch.setattr(bench, "bench_papers", run)
    words = shlex.split(paper.command(entry))
    assert words[:3] == ["python", "-m", "benchmarks"] and main(words[3:]) == 0
    assert asked == [[bench.EntryJob(paper, entry)]]


def test_figures_are_judged_by_names_that_are_words() -> None:
    assert all(re.fullmatch(r"[a-z0-9_.]+", claim.figure) for claim in claims())


def claims() -> Iterator[Claim]:
    for _, entry in ENTRIES:
        yield from entry.claims


def test_an_entry_says_what_becomes_of_it() -> None:
    for wrong in ({}, {"planned": "a", "not_reproduced": "b"}, {"planned": "a", "claims": (Claim("x", "y", 1),)}):
        with pytest.raises(ValueError, match="say what is run"):
            PaperEntry("Table 1", "title", "numbers", **wrong)
    twice = PaperEntry("Table 1", "title", "numbers", planned="all of it")
    with pytest.raises(ValueError, match="Table 1 twice"):
        Paper("name", "title", "authors", (twice, twice))


def test_the_page_of_papers_is_that_of_the_catalogue() -> None:
    assert (DOCS / "papers.md").read_text(encoding="utf-8") == papers_page()
