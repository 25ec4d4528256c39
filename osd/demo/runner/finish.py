"""What a run leaves: summary, picture, report; and the table at the end."""

from __future__ import annotations

import shutil
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from osd.demo.runner.panel import number
from osd.demo.runner.results import RunResults, segment_facts, write_json
from storage.errors import StoreWriteFailed


def leave(results: RunResults, out: Path) -> dict[str, Path]:
    """Write everything into the run's folder; the files by what they are. Raises StoreWriteFailed."""
    from osd.demo.runner.picture import draw, save  # matplotlib takes a second to load
    from osd.demo.runner.report import save_report

    try:
        svg, png = save(draw(results), out)
    except OSError as error:
        raise StoreWriteFailed(path=out, reason=error.strerror or str(error)) from None
    return {
        "report": save_report(results, out / "report.html"),
        "picture": png,
        "picture as SVG": svg,
        "all numbers": write_json(results.summary(), out / "summary.json"),
    }


def tidy(data: Path, out: Path) -> None:
    """Remove the run's own store and the drafts distilled offline."""
    for folder in (data, out / "offline"):
        shutil.rmtree(folder, ignore_errors=True)


def show(results: RunResults, console: Console) -> None:
    """The final table and the totals."""
    facts = results.facts
    console.print(_table(results))
    speed = (
        f"{number(facts['tokens_per_second'], 0)} tokens/s, target alone {number(facts['tokens_per_second_target'], 0)}"
    )
    times = "" if facts["speedup_vs_target"] is None else f" ({facts['speedup_vs_target']:.2f} × on the same requests)"
    if facts["speedup_vs_plain"] is not None:
        times += f", {facts['speedup_vs_plain']:.2f} × osd without drafts"
    console.print(
        f"{facts['requests']} requests, {facts['failed']} failed, in {facts['seconds']:.0f} s. {speed}{times}."
    )
    console.print(
        f"{facts['published']} versions published, {facts['rejected']} rejected; longest pause for new weights "
        f"{number(facts['swap_pause_ms_max'])} ms, a round takes {number(facts['round_ms_median'], 1)} ms.",
        soft_wrap=True,
    )
    same = facts["lossless_checked"] - facts["lossless_failed"]
    console.print(
        f"{same} of {facts['lossless_checked']} texts decoded again are exactly the target's own.", soft_wrap=True
    )
    for note in results.notes[:5]:
        console.print(f"[yellow]{escape(note)}[/yellow]", soft_wrap=True)


def _table(results: RunResults) -> Table:
    parts = {name: segment_facts(results.of(name)) for name in results.segments}
    offline = any("alpha_offline" in part for part in parts.values())
    table = Table(title="Token acceptance rate", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("", "requests", "frozen", "first\n50", "last\n50", "errors\ngone", "back\nafter", "tokens\n/s"):
        table.add_column(heading, justify="right" if heading else "left")
    if offline:
        table.add_column("offline", justify="right")
    for name, part in parts.items():
        gone = part["rejections_gone"]
        cells = [
            name, str(part["requests"]), number(part["alpha_frozen"]), number(part["alpha_first"]),
            f"[bold]{number(part['alpha_last'])}[/bold]", "–" if gone is None else f"{gone:.0%}",
            number(part["recovered_after"], 0), number(part["tokens_per_second_last"], 0),
        ]  # fmt: skip
        table.add_row(*cells, *([number(part.get("alpha_offline"))] if offline else []))
    return table
