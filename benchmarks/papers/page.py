"""The page of results: one HTML file with everything in it, the same as Markdown, and as JSON."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from benchmarks.papers.catalogue import PAPERS
from benchmarks.papers.claims import Claim, ClaimVerdict
from benchmarks.papers.entry import EntryResult, Paper, PaperEntry, PaperFindings, PapersRun, Picture, Rows
from osd.bench.harness.report import save_json, shown
from storage.files.files import writing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKED, DRAWN = 40, 200
"""Points of a curve up to which each is marked, and those of which it is drawn at most."""
PICTURES = "pictures"


@dataclass(frozen=True, slots=True)
class ClaimOnPage:
    """A claim, what became of it, and what became of it in other runs."""

    claim: Claim
    verdict: ClaimVerdict | None
    beside: Mapping[str, ClaimVerdict]
    """By the run's name."""


@dataclass(frozen=True, slots=True)
class EntryOnPage:
    """An entry and what came of it."""

    paper: Paper
    entry: PaperEntry
    result: EntryResult | None
    claims: tuple[ClaimOnPage, ...]
    tables: Mapping[str, Rows]
    pictures: Mapping[str, Markup]
    """SVG by the name of its file."""
    shown_with: EntryOnPage | None
    """The entry of the same experiment that has its tables and pictures."""

    @property
    def state(self) -> str:
        """What the table of contents says of it."""
        if self.entry.planned or self.entry.not_reproduced:
            return "planned" if self.entry.planned else "not reproduced"
        if self.result is None:
            return "not run yet"
        if self.result.failure:
            return "could not be run"
        states = [each.verdict.state for each in self.claims if each.verdict]
        return ", ".join(f"{states.count(s)} {s}" for s in ("confirmed", "refuted", "open") if s in states)

    @property
    def command(self) -> str:
        """The command for this one alone."""
        return self.paper.command(self.entry)


def leave(run: PapersRun, beside: Sequence[PapersRun], out: Path) -> dict[str, Path]:
    """Write the page in its three forms; return the files by what they are. ``beside``: other runs, whose figures stand
    beside the run's own. Raises StoreWriteFailed."""
    entries: list[EntryOnPage] = []
    for paper in PAPERS:
        for entry in paper.entries:
            entries.append(_on_page(paper, entry, run, beside, entries))
    told = {"entries": entries, "facts": run.facts, "compared": _compared(entries, run, beside)}
    files = {"page": out / "index.html", "Markdown": out / "results.md"}
    with writing(out):
        for name, drawn in [picture for each in entries for picture in each.pictures.items()]:
            (out / PICTURES).mkdir(exist_ok=True)
            (out / PICTURES / name).write_text(drawn, encoding="utf-8")
        files["page"].write_text(_render("page.html.jinja", told, escape=True), encoding="utf-8")
        files["Markdown"].write_text(_render("page.md.jinja", told, escape=False), encoding="utf-8")
    files["JSON"] = save_json(out / "results.json", {"settings": dict(run.facts), "papers": _plain(entries)})
    return files


def _on_page(
    paper: Paper, entry: PaperEntry, run: PapersRun, beside: Sequence[PapersRun], before: Sequence[EntryOnPage]
) -> EntryOnPage:
    key = (paper.name, entry.id)
    result = run.results.get(key)
    verdicts = result.verdicts(entry) if result else [None] * len(entry.claims)
    theirs = {each.name: other.verdicts(entry) for each in beside if (other := each.results.get(key))}
    claims = tuple(
        ClaimOnPage(claim, verdicts[i], {name: some[i] for name, some in theirs.items()})
        for i, claim in enumerate(entry.claims)
    )
    own = result.findings if result else PaperFindings({})
    same = next((each for each in before if each.result and _looks_like(each.result.findings, own)), None)
    drawn = () if same else own.pictures.values()
    pictures = {f"{paper.name}-{entry.slug}-{i}.svg": draw(each) for i, each in enumerate(drawn, start=1)}
    return EntryOnPage(paper, entry, result, claims, {} if same else own.tables, pictures, same)


def _looks_like(one: PaperFindings, other: PaperFindings) -> bool:
    """Return whether both have the same tables and pictures, and any at all."""
    return bool(other.tables or other.pictures) and (one.tables, one.pictures) == (other.tables, other.pictures)


def _compared(entries: Sequence[EntryOnPage], run: PapersRun, beside: Sequence[PapersRun]) -> list[dict[str, Any]]:
    """Return, for each other run, how many verdicts are the same there, and which are the opposite."""
    rows = []
    for other in beside:
        pairs = [
            (each, own, own.verdict.state, own.beside[other.name].state)
            for each in entries for own in each.claims if own.verdict and other.name in own.beside
        ]  # fmt: skip
        turned = [f"{each.paper.name}, {each.entry.id}: {own.claim.text}" for each, own, here, there in pairs
                  if {here, there} == {"confirmed", "refuted"}]  # fmt: skip
        same = sum(here == there for _, _, here, there in pairs)
        told = {"name": other.name, "differs": other.differs(run), "claims": len(pairs), "same": same}
        rows.append({**told, "turned": turned})
    return rows


def _render(name: str, told: Mapping[str, Any], *, escape: bool) -> str:
    environment = templates(escape=escape)
    environment.filters.update(shown=shown, placed=placed)
    entries: list[EntryOnPage] = told["entries"]
    by_paper = [(paper, [each for each in entries if each.paper is paper]) for paper in PAPERS]
    top = [(each, own) for each in entries for own in each.claims if own.claim.question and own.verdict]
    return environment.get_template(name).render(told, papers=by_paper, top=top)


def templates(*, escape: bool) -> Environment:
    """Return what renders the templates of this folder."""
    return Environment(
        loader=PackageLoader("benchmarks.papers", ""), autoescape=escape, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip


def placed(text: str) -> str:
    """Return a text of the catalogue, whose links are those of a page in docs/, as it stands on a page anywhere."""
    return re.sub(r"\[[^\]]+\]\(([^)]+)\)", r"docs/\1", text)


def _plain(entries: list[EntryOnPage]) -> dict[str, Any]:
    """Return entries by paper and id, for programs."""
    found: dict[str, Any] = {paper.name: {} for paper in PAPERS}
    for each in entries:
        entry, result = each.entry, each.result
        found[each.paper.name][entry.id] = {
            "title": entry.title, "state": each.state, "says": entry.says, "ran": entry.ran, "differs": entry.differs,
            "planned": entry.planned, "not_reproduced": entry.not_reproduced, "command": each.command,
            "claims": [
                {"claim": own.claim.text, "rule": own.claim.rule, **_verdict(own.verdict),
                 "beside": {label: _verdict(other) for label, other in own.beside.items()}}
                for own in each.claims if own.verdict
            ],
            "tables": dict(result.findings.tables) if result else {}, "sizes": result.sizes if result else "",
            "seconds": result.seconds if result else None, "failure": result.failure if result else "",
        }  # fmt: skip
    return found


def _verdict(verdict: ClaimVerdict) -> dict[str, Any]:
    figure = verdict.figure
    numbers = {"value": figure.value, "error": figure.error, "count": figure.count} if figure else {}
    return {"verdict": verdict.state, **numbers}


def figure_of(picture: Picture) -> Figure:
    """Return a picture as matplotlib has it."""
    from osd.bench.harness.picture import COLOURS, dress, make_panels

    figure, (axes,) = make_panels(1, 4.8, 2.6)
    for number, curve in enumerate(picture.curves):
        points = curve.points[:: -(-len(curve.points) // DRAWN) or 1]
        xs, ys = zip(*points, strict=True) if points else ((), ())
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
