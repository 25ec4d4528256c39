"""Who watches a run."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Who is told how far a run is."""

    def begin(self, work: float) -> None:
        """So much work is to come, in the units of :meth:`Plan.work`."""
        ...

    def at(self, what: str) -> None:
        """What is being done now."""
        ...

    def say(self, text: str) -> None:
        """Something that a person should know."""
        ...

    def did(self, work: float) -> None:
        """So much of it is done."""
        ...
