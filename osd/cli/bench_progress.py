"""A bar for each part of a bench, with the number that a person wants beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Told = Callable[[int, int, float | None], None]
"""Done, of how many, and the acceptance of late."""


@contextmanager
def bars(parts: Sequence[str], console: Console) -> Iterator[dict[str, Told]]:
    """One bar a part, which appears when it is first told of."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[alpha]}"),
        TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=not console.is_terminal) as progress:
        yield {part: _bar(progress, part) for part in parts}


def _bar(progress: Progress, part: str) -> Told:
    task = progress.add_task(part, visible=False, alpha="")

    def told(done: int, of: int, alpha: float | None) -> None:
        said = "" if alpha is None else f"α {alpha:.2f}"
        progress.update(task, completed=done, total=of, visible=True, alpha=said)

    return told
