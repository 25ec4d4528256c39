"""How many cores there are for this process: a container or a taskset may leave it fewer than the machine has."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """At least 1."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return os.cpu_count() or 1
