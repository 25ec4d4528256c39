"""What the pages link to is there, and the README stays a page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """Each link of a page to a file of ours: the file, and the anchor in it, empty where there is none."""
    for target in LINK.findall(CODE.sub("", page.read_text())):
        if "://" not in target:
            name, _, anchor = target.partition("#")
            yield (page.parent / name).resolve() if name else page, anchor


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to a page's headings."""
    headings = HEADING.findall(CODE.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    broken = [str(file) for file, _ in links(page) if not file.exists()]
    lost = [f"{file.name}#{at}" for file, at in links(page) if at and file.exists() and at not in anchors(file)]
    assert broken + lost == []


def test_every_page_is_reached_from_the_readme() -> None:
    reached, ahead = set(), [PAGES[0]]
    while ahead:
        page = ahead.pop()
        reached.add(page)
        ahead += [file for file, _ in links(page) if file.suffix == ".md" and file not in reached]
    assert {page.name for page in PAGES} - {page.name for page in reached} <= {"CHANGELOG.md"}


def test_the_readme_stays_a_page() -> None:
    lines = PAGES[0].read_text().splitlines()
    assert len(lines) <= 120 and max(map(len, lines)) <= 200


NAMED = re.compile(r"`((?:osd|storage|router|trainer|benchmarks|tests|migrations)/[\w./]*)`")
WALK = re.compile(r"^## A walk: .*?(?=^## )", re.MULTILINE | re.DOTALL)
STATION = re.compile(r"^\d+\. `([\w./]+\.py)`", re.MULTILINE)
WRITTEN_AT_RUN_TIME = {"router/choices.json"}


@pytest.mark.parametrize(
    "page", [page for page in PAGES[2:] if "bench-log" not in page.name], ids=lambda page: page.name
)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    named = set(NAMED.findall(page.read_text())) - WRITTEN_AT_RUN_TIME
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_each_walk_is_short() -> None:
    walks = [STATION.findall(walk) for walk in WALK.findall((ROOT / "docs" / "architecture.md").read_text())]
    lengths = [sum(len((ROOT / name).read_text().splitlines()) for name in walk) for walk in walks]
    assert len(walks) == 2 and min(map(len, walks)) >= 9 and max(lengths) <= 1500
