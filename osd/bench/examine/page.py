"""What an examination leaves: one page, its picture, and all numbers as JSON."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from osd.bench.examine.figures import Figures, Rows
from osd.bench.harness.report import save_json, shown
from storage.files.files import write_whole

TITLES = {
    "depth": "by the token's number in the draft", "class": "by class of token", "topic": "by topic",
    "context": "by place in the text",
}  # fmt: skip


@dataclass(frozen=True)
class Examined:
    """What was found."""

    draft: str
    target: str
    findings: Sequence[str]
    """Sentences; the first says what to do."""
    figures: Figures | None
    """None for a draft that does not go with the target."""
    files: dict[str, Path]

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as JSON has it."""
        return {"sentence": self.findings[0], **asdict(self)}


def leave(found: Examined, folder: Path) -> Examined:
    """Write it; return it with its files. Raises StoreWriteFailed."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {"page": folder / "examined.html", "numbers": folder / "examined.json"}
    picture = None
    if found.figures is not None:
        files["picture"] = picture = draw(found.figures, folder)
    write_whole(files["page"], memoryview(render(found, picture).encode()))
    found = replace(found, files=files)
    save_json(files["numbers"], found.as_dict())
    return found


def render(found: Examined, picture: Path | None) -> str:
    """Return the page."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("osd.bench.examine", ""), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["shown"] = shown
    image = None if picture is None else base64.b64encode(picture.read_bytes()).decode()
    tables = {} if found.figures is None else tables_of(found.figures)
    return environment.get_template("page.html.jinja").render(found=found, image=image, tables=tables)


def tables_of(figures: Figures) -> dict[str, Rows]:
    """Return all tables, by their titles."""
    tables = {f"Acceptance {TITLES[name]}": rows for name, rows in figures.by.items()}
    return {
        "What each γ makes": figures.gammas,
        **tables,
        "Refused most often, and what the target said": figures.refused,
    }


def draw(figures: Figures, folder: Path) -> Path:
    """Draw acceptance by all that may tell why."""
    from osd.bench.harness.picture import BLUE, FAINT, INK, dress, make_panels, save

    by = {name: rows for name, rows in figures.by.items() if rows}
    figure, panels = make_panels(len(by), 5.0, 3.2, across=2)
    for axes, (name, rows) in zip(panels, by.items(), strict=True):
        told = rows[:10] if name != "context" else sorted(rows, key=lambda row: int(row["group"].split()[0]))
        values, labels = [row["right"] for row in told], [row["group"][:28] for row in told]
        axes.barh(range(len(told)), values, color=BLUE)
        axes.set_yticks(range(len(told)), labels, fontsize=8)
        axes.invert_yaxis()
        axes.axvline(figures.right, color=INK, lw=1, ls=":")
        axes.set(xlim=(0, 1), title=TITLES[name], xlabel="share of tokens that are right")
        axes.grid(axis="x", color=FAINT, lw=0.6)
        dress(axes)
    return save(figure, folder, "examined")
