"""The page of results, rendered from the catalogue and a run's folder: Markdown, and the same as one HTML file.

`python -m benchmarks.papers.page docs/papers` renders a folder again, with the runs of its folder beside/ told beside.
"""

from __future__ import annotations

import io
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from benchmarks.papers.claims import Claim, ClaimVerdict
from benchmarks.papers.experiment import PaperFindings, Picture, Rows
from benchmarks.papers.results import EntryJob, EntryResult, PapersRun, all_jobs, run_of
from osd.bench.harness.report import shown
from storage.files.files import writing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKED, DRAWN = 40, 200
"""Points of a curve up to which each is marked, and those of which it is drawn at most."""
PICTURES = "pictures"
IMAGE = re.compile(rf'<img src="{PICTURES}/([^"]+)"[^>]*>')
DEPENDS = "depends on the pair"
VERDICT = re.compile(r"<td>(confirmed|refuted|open|depends)( on the pair[^<]*)?</td>")


@dataclass(frozen=True, slots=True)
class ClaimOnPage:
    """A claim, what became of it, and what became of it in other runs."""

    claim: Claim
    verdict: ClaimVerdict | None
    beside: Mapping[str, ClaimVerdict]
    """By the run's name."""
    state: str
    """The verdict over all runs."""


@dataclass(frozen=True, slots=True)
class EntryOnPage:
    """An entry and what came of it."""

    job: EntryJob
    result: EntryResult | None
    claims: Sequence[ClaimOnPage]
    tables: Mapping[str, Rows]
    pictures: Mapping[str, Picture]
    """By the name of its file."""
    shown_with: EntryJob | None
    """The entry of the same experiment that has its tables and pictures."""


def leave(run: PapersRun, beside: Sequence[PapersRun], out: Path) -> dict[str, Path]:
    """Write the page in its two forms; return the files by what they are. ``beside``: other runs, whose figures stand
    beside the run's own. Raises StoreWriteFailed."""
    entries = _on_page(run, beside)
    pictures = {name: draw(picture) for each in entries for name, picture in each.pictures.items()}
    told = {
        "entries": entries, "facts": run.facts, "compared": _compared(entries, run, beside),
        "top": [
            (each, own) for each in entries for own in each.claims
            if own.claim.question and (own.verdict or own.beside)
        ],
        "counts": Counter(own.state for each in entries for own in each.claims),
    }  # fmt: skip
    text = render("results.md.jinja", **told)
    files = {"page": out / "index.html", "Markdown": out / "results.md"}
    with writing(out):
        for name, drawn in pictures.items():
            (out / PICTURES).mkdir(exist_ok=True)
            (out / PICTURES / name).write_text(drawn, encoding="utf-8")
        files["Markdown"].write_text(text, encoding="utf-8")
        files["page"].write_text(as_html(text, pictures), encoding="utf-8")
    return files


def _on_page(run: PapersRun, beside: Sequence[PapersRun]) -> list[EntryOnPage]:
    entries: list[EntryOnPage] = []
    pairs: dict[str | None, object] = {None: run.pair}
    pairs.update((other.name, other.pair) for other in beside)
    for job in all_jobs():
        result, others = run.results.get(str(job)), {other.name: other.verdicts(job) for other in beside}
        verdicts: list[ClaimVerdict | None] = [*run.verdicts(job)] or [None] * len(job.entry.claims)
        claims = [
            _claim(claim, verdicts[i], {name: some[i] for name, some in others.items() if some}, pairs)
            for i, claim in enumerate(job.entry.claims)
        ]
        own = result.findings if result else PaperFindings({})
        tables: Mapping[str, Rows] = {**own.tables, **_lacking(own, job, beside)}
        same = next((each.job for each in entries if each.result and _looks_like(each.result.findings, own)), None)
        drawn = () if same else own.pictures.values()
        pictures = {f"{job.paper.name}-{job.entry.slug}-{i}.svg": each for i, each in enumerate(drawn, start=1)}
        entries.append(EntryOnPage(job, result, claims, {} if same else tables, pictures, same))
    return entries


def _lacking(own: PaperFindings, job: EntryJob, beside: Sequence[PapersRun]) -> dict[str, Rows]:
    """Return the tables of other runs that an entry's own does not have."""
    found = [(other.name, other.results[str(job)].findings) for other in beside if str(job) in other.results]
    return {f"{title} ({name})": rows for name, some in found for title, rows in some.tables.items()
            if own.tables and title not in own.tables}  # fmt: skip


def _claim(
    claim: Claim, verdict: ClaimVerdict | None, beside: Mapping[str, ClaimVerdict], pairs: Mapping[str | None, object]
) -> ClaimOnPage:
    """Judge a claim over all runs: what one pair confirms and another one refutes depends on the pair. ``pairs``: of
    each run by its name, None being the run itself."""
    known: dict[str | None, ClaimVerdict] = dict(beside.items())
    if verdict:
        known[None] = verdict
    found = {state: {pairs[n] for n, v in known.items() if v.state == state} for state in ("confirmed", "refuted")}
    apart = any(one != other for one in found["confirmed"] for other in found["refuted"])
    told = [v.state for v in (verdict, *beside.values()) if v and v.figure] or [v.state for v in [verdict] if v]
    return ClaimOnPage(claim, verdict, beside, DEPENDS if apart else told[0] if told else "not run yet")


def _looks_like(one: PaperFindings, other: PaperFindings) -> bool:
    """Return whether both have the same tables and pictures, and any at all."""
    return bool(other.tables or other.pictures) and (one.tables, one.pictures) == (other.tables, other.pictures)


def _compared(entries: Sequence[EntryOnPage], run: PapersRun, beside: Sequence[PapersRun]) -> list[dict[str, Any]]:
    """Return, for each other run, how many verdicts are the same there, and which are the opposite."""
    rows = []
    for other in beside:
        pairs = [
            (f"{each.job}: {own.claim.text}", own.verdict.state, own.beside[other.name].state)
            for each in entries for own in each.claims if own.verdict and other.name in own.beside
        ]  # fmt: skip
        turned = [name for name, here, there in pairs if {here, there} == {"confirmed", "refuted"}]
        same = sum(here == there for _, here, there in pairs)
        rows.append({"name": other.name, "differs": other.differs(run), "claims": len(pairs), "same": same,
                     "turned": turned})  # fmt: skip
    return rows


def render(template: str, **told: Any) -> str:
    """Render a template of this folder."""
    environment = Environment(
        loader=PackageLoader("benchmarks.papers", ""), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters.update(shown=shown, placed=placed)
    return environment.get_template(template).render(told)


def placed(text: str) -> str:
    """Return a text of the catalogue, whose links are those of a page in docs/, as it stands on a page anywhere."""
    return re.sub(r"\[[^\]]+\]\(([^)]+)\)", r"docs/\1", text)


def as_html(text: str, pictures: Mapping[str, str]) -> str:
    """Return the page as one HTML file, with its pictures in it."""
    from markdown_it import MarkdownIt

    body = MarkdownIt().enable("table").render(text)
    body = VERDICT.sub(r'<td class="\1">\1\2</td>', IMAGE.sub(lambda found: pictures[found[1]], body))
    return render("page.html.jinja", body=body)


def draw(picture: Picture) -> str:
    """Return a picture as SVG to stand inside a page."""
    import matplotlib as mpl

    drawn = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "osd"}):
        figure_of(picture).savefig(drawn, format="svg", metadata={"Date": None})
    text = drawn.getvalue()
    return re.sub(r"\s*<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)


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


def main(folder: Path) -> None:
    """Render the page of a folder."""
    beside = [run_of(path) for path in sorted((folder / "beside").glob("*"))]
    leave(run_of(folder), beside, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
