"""Waiting for what must come to pass in another thread or process. The bound is wide: a busy machine is no failure."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 120.0
"""Seconds after which what has not come to pass never will."""
LONGEST_PAUSE = 0.1
"""Seconds between two looks, where looking takes long."""


def until(
    condition: Callable[[], object], what: str = "what was waited for", seconds: float = PATIENCE, pause: float = 0.02
) -> None:
    """Wait until something holds; fail when it does not come to pass. It is asked again after ``pause`` seconds, or
    after three times what asking took: who waits leaves the cores to what is waited for."""
    began = time.monotonic()
    end = began + seconds
    while not condition():
        asked = time.monotonic()
        assert asked < end, f"never: {what}"
        time.sleep(max(pause, min(3 * (asked - began), LONGEST_PAUSE)))
        began = time.monotonic()
