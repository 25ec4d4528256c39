"""Waiting for what must come to pass in another thread or process. The bound is wide: a busy machine is no failure."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 120.0
"""Seconds after which what has not come to pass never will."""


def until(
    condition: Callable[[], object], what: str = "what was waited for", seconds: float = PATIENCE, pause: float = 0.02
) -> None:
    """Wait until something holds, asked again after each ``pause`` in seconds; fail when it does not come to pass."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(pause)
