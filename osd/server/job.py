"""A request with somebody who waits for it, and who takes such."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from osd.server.errors import ApiError
from osd.server.piece import Piece
from storage.records import Request


@dataclass(slots=True, eq=False)
class Job:
    """See the module."""

    request: Request
    deliver: Callable[[Piece], None]
    """Called on the event loop."""
    pause: float = 0.0
    """Seconds between two portions of what comes."""
    top: int | None = None
    """How many of the likeliest tokens' log-probabilities come with each token; None for none at all."""


class Decoding(Protocol):
    """What decodes, as those see it who answer HTTP: :class:`osd.server.far_thread.FarThread`."""

    @property
    def alive(self) -> bool:
        """Whether it decodes."""
        ...

    def submit(self, jobs: Sequence[Job]) -> None:
        """Put jobs in line, all or none; where there is no room a piece says so. Raises EngineFailed."""
        ...

    def end(self, job: Job, why: ApiError | None = None) -> None:
        """Stop working for a job; with ``why`` it is told."""
        ...
