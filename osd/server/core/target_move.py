"""An exchange of the target that the decode thread is to make."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal

from osd.engine.engine import Engine

UnderWay = Literal["wait", "keep", "abort"]
"""What becomes of requests that run, as vLLM's /pause names it: they end on the old target; they are read again, and go
on, on the new one; they end at once."""


@dataclass(slots=True)
class TargetMove:
    """An exchange that the decode thread is to make."""

    begin: Callable[[], Engine]
    """Begins the new engine, once the old one is idle."""
    instead: Callable[[], Engine]
    """Returns the engine that serves where that fails."""
    requests: UnderWay
    done: Future[Engine] = field(default_factory=Future)
    begun: bool = False
    """Whether what ran was seen to."""
