"""A request with somebody who waits for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from osd.server.process.piece import Piece
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
