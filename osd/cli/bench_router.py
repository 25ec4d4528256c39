"""``osd bench router``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from osd.cli.demo import INTERRUPTED
from osd.cli.options import JsonOption
from osd.cli.out import note, print_facts, print_json

if TYPE_CHECKING:
    from osd.bench.router.bench import Report


def router(
    train: Annotated[
        Path,
        typer.Option(
            help="Folder with tatoeba, xquad, clinc150, banking77, mbxp as NAME.jsonl.gz or .jsonl; those that are "
            "missing are left out.",
            metavar="DIR",
        ),
    ],
    test: Annotated[
        Path | None,
        typer.Option(
            help="Folder with the same files to measure on. Default: 15 % of --train, chosen by a hash of the English "
            "sentence or the prompt, which is then not learned from.",
            metavar="DIR",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """How often language and topic of a prompt are guessed right, how well the unknown is known, and how fast.

    Languages are learned from tatoeba (xquad and mbxp are only measured on), topics from clinc150 and banking77.

    Example: `osd bench router --train ./data --json`
    """
    from osd.bench.router.bench import bench_router
    from osd.bench.router.folder import Folder, Sides

    sides = Sides(Folder(train, note), Folder(test, note) if test else None)
    with _progress() as report:
        result = bench_router(sides, report)
    if not json:
        print_facts({name: _show(value) for name, value in result.items()})
    print_json(result)


@contextmanager
def _progress() -> Iterator[Report]:
    """A bar on a terminal, else a line a step. Ctrl-C ends the command in good order."""
    console, began = Console(stderr=True), time.monotonic()
    columns = (TextColumn("{task.description:<36}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with Progress(*columns, transient=True, console=console, disable=not console.is_terminal) as bar:
            task = bar.add_task("reading", total=None)

            def report(done: int, total: int, what: str) -> None:
                bar.update(task, completed=done, total=total, description=what)
                if bar.disable:
                    note(f"{done}/{total} after {time.monotonic() - began:.0f} s: {what}")

            yield report
    except KeyboardInterrupt:
        note("Stopped. Nothing was kept.")
        raise typer.Exit(INTERRUPTED) from None


def _show(value: Any) -> Any:
    if isinstance(value, float):
        return f"{value:.4f}" if value < 10 else f"{value:,.0f}"
    return " ".join(value) if isinstance(value, tuple) else value
