"""The result of a check by `osd doctor`."""

from __future__ import annotations

from dataclasses import dataclass

OK, WARNING, BROKEN = "ok", "warning", "broken"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of checking one thing."""

    part: str
    state: str
    """``ok``, ``warning`` or ``broken``."""
    found: str
    mend: str = ""
    """The remedy; empty where none is needed."""
