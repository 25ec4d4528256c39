"""How far a bench is: what runs, which part of it is done, how long it still takes; and a polite end on Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

LINE_SECONDS = 20
"""Between two lines of progress where there is no terminal."""


class Watch:
    """The progress of one run. Without a bar it says nothing, as tests want it."""

    def __init__(self, bar: Progress | None = None) -> None:
        self._bar, self._task = bar, bar.add_task("loading", total=None) if bar else None
        self._told = time.monotonic()
        self._unit, self._done, self._end = 1.0, 0.0, 0.0  # the bar's unit: that of the outermost work
        self._within = False
        self.stopped = False
        """Whether Ctrl-C ended it early."""

    def begin(self, work: float) -> None:
        """So much work is to come, in any unit; within a :meth:`job` it is what is left of that."""
        if self._within:
            self._unit = (self._end - self._done) / work if work else 0.0
            return
        self._unit, self._done, self._end = 1.0, 0.0, work
        if self._bar and self._task is not None:
            self._bar.start()
            self._bar.update(self._task, total=work, completed=0)

    @contextmanager
    def job(self, work: float) -> Iterator[None]:
        """Run a job of so much work, which may begin work of its own; it is done when the context ends."""
        outer = self._unit, self._end, self._within
        self._end, self._within = min(self._end, self._done + work * self._unit), True
        try:
            yield
            self._at(self._end)
        finally:
            self._unit, self._end, self._within = outer

    def at(self, what: str) -> None:
        """Say what is being done now."""
        if not self._bar or self._task is None:
            return
        self._bar.start()
        self._bar.update(self._task, description=what)
        if self._bar.disable and time.monotonic() > self._told + LINE_SECONDS:
            self._told = time.monotonic()
            task = self._bar.tasks[self._task]
            left = "" if task.time_remaining is None else f", about {task.time_remaining / 60:.0f} min left"
            self.say(f"{task.percentage:.0f} %: {what}{left}")

    def did(self, work: float = 1.0) -> None:
        """So much of the work is done."""
        self._at(min(self._end, self._done + work * self._unit))

    def _at(self, done: float) -> None:
        self._done = done
        if self._bar and self._task is not None:
            self._bar.update(self._task, completed=done)

    def say(self, text: str) -> None:
        """Print a line that a person should know, above the bar."""
        if self._bar:
            note(text)

    @contextmanager
    def until_ctrl_c(self) -> Iterator[None]:
        """Run what is inside up to Ctrl-C, which is remembered in ``stopped`` and goes no further."""
        try:
            yield
        except KeyboardInterrupt:
            self.stopped = True


@contextmanager
def watching(out: Path | None = None) -> Iterator[Watch]:
    """A bar on the terminal once something is told, else a line now and then. ``out``: the folder where a stopped run
    goes on."""
    columns = (
        TextColumn("{task.description:<36}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn(),
        TextColumn("left"), TimeRemainingColumn(),
    )  # fmt: skip
    console = Console(stderr=True)
    bar = Progress(*columns, transient=True, console=console, disable=not console.is_terminal)
    watch = Watch(bar)
    try:
        yield watch
    finally:
        if bar.live.is_started:
            bar.stop()
        if watch.stopped:
            note("Stopped." + (f" The same command with --out {out} goes on from there." if out else ""))


def note(text: str) -> None:
    """Print a line for the person at the terminal, on stderr."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(escape(text))
