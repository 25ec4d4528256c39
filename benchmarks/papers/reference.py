"""docs/papers.md, written from the catalogue: ``python -m benchmarks.papers.reference``. A test compares both.

What the catalogue does not know, which method is there and where, is kept by hand in methods.md.jinja beside this file.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from benchmarks.papers.catalogue import PAPERS
from benchmarks.papers.entry import Paper, PaperEntry
from benchmarks.papers.page import templates

DOCS = Path(__file__).parents[2] / "docs"


def papers_page() -> str:
    """Return the text of docs/papers.md."""
    environment = templates(escape=False)
    environment.filters.update(cell=cell, state=state_of, sizes=sizes_of)
    states = Counter(state_of(entry) for paper in PAPERS for entry in paper.entries)
    return environment.get_template("methods.md.jinja").render(papers=PAPERS, states=states, section=section)


def section(paper: Paper) -> str:
    """Return the section of one paper: a table of its entries, then the rules of what is run."""
    lines = ["| | what it shows | state |", "|---|---|---|"]
    lines += [f"| {entry.id} | {cell(entry.title)} | {told(entry)} |" for entry in paper.entries]
    rules = [part for entry in paper.entries if entry.experiment for part in _rules(entry)]
    return "\n".join(lines + (["", *rules] if rules else []))


def _rules(entry: PaperEntry) -> list[str]:
    """Return an entry's claims with their rules."""
    lines = [
        f"**{entry.id}.** {entry.says} *Here:* {entry.ran} {('*Not as there:* ' + entry.differs) * bool(entry.differs)}"
    ]
    lines += [f"- {claim.text} `{claim.rule}`" for claim in entry.claims]
    return [line.rstrip() for line in lines] + [""]


def told(entry: PaperEntry) -> str:
    """Return what becomes of an entry, as its row says it."""
    if entry.experiment:
        return f"run: {len(entry.claims)} claim{'s' * (len(entry.claims) > 1)}"
    return f"planned: {cell(entry.planned)}" if entry.planned else f"not reproduced: {cell(entry.not_reproduced)}"


def state_of(entry: PaperEntry) -> str:
    """Return run, planned or not reproduced."""
    return "run" if entry.experiment else "planned" if entry.planned else "not reproduced"


def sizes_of(entry: PaperEntry) -> str:
    """Return how much is measured, small and full."""
    experiment = entry.experiment
    return f"{experiment.small}; {experiment.full}" if experiment else ""


def cell(text: str) -> str:
    """Return a text for a cell of a table."""
    return text.replace("|", "\\|").replace("\n", " ")


def main() -> None:
    """Write the page."""
    (DOCS / "papers.md").write_text(papers_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
