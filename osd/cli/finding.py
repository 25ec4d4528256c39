"""What `osd doctor` says of one thing."""

from __future__ import annotations

from dataclasses import dataclass

OK, WARNING, BROKEN = "ok", "warning", "broken"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One thing that was looked at."""

    part: str
    state: str
    """ok, warning or broken."""
    found: str
    mend: str = ""
    """What to do about it; empty where nothing need be done."""
