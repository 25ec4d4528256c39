"""The report: one HTML file with everything in it, made from a template beside this module."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from osd.demo.runner.picture import draw
from osd.demo.runner.results import DEFINITIONS, RunResults
from storage.errors import StoreWriteFailed


def render(results: RunResults) -> str:
    """The page."""
    environment = Environment(
        loader=PackageLoader("osd.demo.runner", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(rate=_rate, whole=_whole, times=_times, seconds=_seconds)
    page = environment.get_template("report.html.jinja")
    return page.render(
        results=results, summary=results.summary(), picture=Markup(_inline_svg(results)), definitions=DEFINITIONS
    )


def save_report(results: RunResults, path: Path) -> Path:
    """Raises StoreWriteFailed."""
    try:
        path.write_text(render(results), encoding="utf-8")
    except OSError as error:
        raise StoreWriteFailed(path=path, reason=error.strerror or str(error)) from None
    return path


def _inline_svg(results: RunResults) -> str:
    out = io.StringIO()
    draw(results).savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    return text[text.index("<svg") :]


def _rate(value: Any) -> str:
    return "–" if value is None else f"{value:.2f}"


def _whole(value: Any) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _times(value: Any) -> str:
    return "–" if value is None else f"{value:.2f} ×"


def _seconds(value: Any) -> str:
    return "–" if value is None else f"{value:.0f} s" if value < 120 else f"{value / 60:.1f} min"
