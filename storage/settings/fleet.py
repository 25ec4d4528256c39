"""Several serving processes, how dead ones are told apart, and how a new version reaches them: ``[fleet]``."""

from __future__ import annotations

from pydantic import Field

from storage.settings.section import Section


class FleetSettings(Section):
    processes: int = Field(default=1, ge=1, le=256)
    """Processes that `osd serve` starts behind its one port, each with an engine of its own."""
    heartbeat_seconds: float = Field(default=3.0, gt=0)
    """How often a serving process tells the database that it lives, and looks whether it is to drain."""
    gone_seconds: float = Field(default=10.0, gt=0)
    """A serving process that was not heard of for so long is shown as gone, and what it had claimed is free."""
    canary: bool = False
    """Whether one serving process takes a new version first, while two or more live; the others follow when its
    acceptance has not fallen."""
    canary_requests: int = Field(default=64, ge=8)
    """Requests that it finishes with the new version before the others follow."""
    canary_seconds: float = Field(default=600.0, gt=0)
    """They follow at the latest after so long, if what is known by then does not speak against it."""
    canary_confidence: float = Field(default=0.99, gt=0.5, lt=1)
    """One-sided confidence of a fall that takes the version back, over all looks together."""
