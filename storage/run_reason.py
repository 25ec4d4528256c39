"""Why training runs began."""

from __future__ import annotations

from dataclasses import dataclass

BEGAN = "began"
"""Key in a run's settings: why it began, the fields of a :class:`RunReason`."""


@dataclass(frozen=True, slots=True)
class RunReason:
    """Why a training run began."""

    why: str
    """``interval``, ``age``, ``retry``; with ``learn.interval_requests = "auto"`` also ``first``, ``drift``,
    ``pays``."""
    words: str


AGAIN = RunReason("retry", "requests of a run that failed are tried again")
