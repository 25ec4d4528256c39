"""The page of results: one HTML file with everything in it, the same as Markdown, and as JSON."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from osd.bench.harness.report import save_json, shown
from osd.bench.papers.catalogue import PAPERS
from osd.bench.papers.claims import ClaimVerdict
from osd.bench.papers.entry import EntryResult, Paper, PaperEntry, Picture
from storage.files.files import writing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Results = Mapping[tuple[str, str], EntryResult]
MARKED = 40
"""Points of a curve up to which each is marked."""


@dataclass(frozen=True, slots=True)
class EntryOnPage:
    """An entry and what came of it."""

    paper: Paper
    entry: PaperEntry
    result: EntryResult | None
    verdicts: tuple[ClaimVerdict, ...]
    pictures: Mapping[str, Markup]
    """SVG by title."""

    @property
    def state(self) -> str:
        """What the table of contents says of it."""
        if self.entry.planned or self.entry.not_reproduced:
            return "planned" if self.entry.planned else "not reproduced"
        if self.result is None:
            return "not run yet"
        if self.result.failure:
            return "could not be run"
        states = [verdict.state for verdict in self.verdicts]
        return ", ".join(f"{states.count(s)} {s}" for s in ("confirmed", "refuted", "open") if s in states)

    @property
    def command(self) -> str:
        """The command for this one alone."""
        return self.paper.command(self.entry)


def leave(results: Results, facts: Mapping[str, Any], out: Path) -> dict[str, Path]:
    """Write the page in its three forms; return the files by what they are. Raises StoreWriteFailed."""
    entries = [_on_page(paper, entry, results) for paper in PAPERS for entry in paper.entries]
    top = [(each, v) for each in entries for v in each.verdicts if v.claim.question]
    files = {"page": out / "index.html", "Markdown": out / "results.md"}
    with writing(out):
        files["page"].write_text(_render("page.html.jinja", entries, top, facts, escape=True), encoding="utf-8")
        files["Markdown"].write_text(_render("page.md.jinja", entries, top, facts, escape=False), encoding="utf-8")
    files["JSON"] = save_json(out / "results.json", {"settings": dict(facts), "papers": _plain(entries)})
    return files


def _on_page(paper: Paper, entry: PaperEntry, results: Results) -> EntryOnPage:
    result = results.get((paper.name, entry.id))
    verdicts = tuple(result.verdicts(entry)) if result else ()
    pictures = {title: draw(each) for title, each in result.findings.pictures.items()} if result else {}
    return EntryOnPage(paper, entry, result, verdicts, pictures)


def _render(
    name: str, entries: list[EntryOnPage], top: list[tuple[EntryOnPage, ClaimVerdict]], facts: Mapping[str, Any],
    *, escape: bool,
) -> str:  # fmt: skip
    environment = Environment(
        loader=PackageLoader("osd.bench.papers", ""), autoescape=escape, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters["shown"] = shown
    by_paper = [(paper, [each for each in entries if each.paper is paper]) for paper in PAPERS]
    return environment.get_template(name).render(papers=by_paper, top=top, facts=facts)


def _plain(entries: list[EntryOnPage]) -> dict[str, Any]:
    """Return entries by paper and id, for programs."""
    found: dict[str, Any] = {paper.name: {} for paper in PAPERS}
    for each in entries:
        entry, result = each.entry, each.result
        found[each.paper.name][entry.id] = {
            "title": entry.title, "state": each.state, "says": entry.says, "ran": entry.ran, "differs": entry.differs,
            "planned": entry.planned, "not_reproduced": entry.not_reproduced, "command": each.command,
            "claims": [
                {"claim": v.claim.text, "rule": v.claim.rule, "verdict": v.state,
                 "value": v.figure and v.figure.value, "error": v.figure and v.figure.error,
                 "count": v.figure and v.figure.count}
                for v in each.verdicts
            ],
            "tables": dict(result.findings.tables) if result else {}, "sizes": result.sizes if result else "",
            "seconds": result.seconds if result else None, "failure": result.failure if result else "",
        }  # fmt: skip
    return found


def figure_of(picture: Picture) -> Figure:
    """Return a picture as matplotlib has it."""
    from osd.bench.harness.picture import COLOURS, dress, make_panels

    figure, (axes,) = make_panels(1, 4.8, 2.6)
    for number, curve in enumerate(picture.curves):
        xs, ys = zip(*curve.points, strict=True) if curve.points else ((), ())
        mark = "o" if len(xs) <= MARKED else None
        axes.plot(xs, ys, color=COLOURS[number % len(COLOURS)], lw=1.6, marker=mark, ms=3, label=curve.label)
    axes.set(xlabel=picture.x, ylabel=picture.y)
    axes.grid(axis="y", lw=0.6, alpha=0.6)
    dress(axes)
    if len(picture.curves) > 1:
        figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    return figure


def draw(picture: Picture) -> Markup:
    """Return a picture as SVG to stand inside a page."""
    import matplotlib as mpl

    drawn = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "osd"}):
        figure_of(picture).savefig(drawn, format="svg", metadata={"Date": None})
    text = drawn.getvalue()
    return Markup(re.sub(r"\s*<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL))
